//! What a document has of commands: blocks of code, code within a line, and the words of a command.
//!
//! A block that is indented, or between fences that name no language, is commands of a shell. Whatever else a
//! block is, its fence says: `text`, `toml`, `yaml`.

/// A block of code.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// What its fence says; empty for commands.
    pub language: String,
    pub text: String,
}

/// The blocks of a document, and its other lines as they are.
pub fn blocks(text: &str) -> (Vec<Block>, String) {
    let (mut found, mut prose) = (Vec::<Block>::new(), String::new());
    let mut fence: Option<Block> = None;
    let (mut is_after_blank, mut is_in_block) = (true, false);
    // Where the text of the list's item begins that a line may belong to.
    let mut item = 0;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(mut block) = fence.take() {
            if trimmed.starts_with("```") {
                found.push(block);
            } else {
                block.text.push_str(line);
                block.text.push('\n');
                fence = Some(block);
            }
            continue;
        }
        if let Some(language) = trimmed.strip_prefix("```") {
            let language = language.trim().to_owned();
            fence = Some(Block {
                language,
                text: String::new(),
            });
            (is_in_block, is_after_blank) = (false, false);
            continue;
        }
        if trimmed.is_empty() {
            is_after_blank = true;
            continue;
        }
        if indent < item {
            item = 0;
        }
        if indent >= item + 4 && (is_after_blank || is_in_block) {
            if !is_in_block {
                let (language, text) = (String::new(), String::new());
                found.push(Block { language, text });
            }
            if let Some(block) = found.last_mut() {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (is_in_block, is_after_blank) = (true, false);
            continue;
        }
        (is_in_block, is_after_blank) = (false, false);
        item = marker(trimmed).map_or(item, |width| indent + width);
        prose.push_str(line);
        prose.push('\n');
    }
    (found, prose)
}

/// How wide the mark of a list's item is, with the space behind it.
fn marker(line: &str) -> Option<usize> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let mark = match line.as_bytes().get(digits) {
        Some(b'.' | b')') if digits > 0 => digits + 1,
        Some(b'-' | b'*' | b'+') if digits == 0 => 1,
        _ => return None,
    };
    line[mark..].starts_with(' ').then_some(mark + 1)
}

/// Code within the lines of a document.
pub fn spans(prose: &str) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in prose.split("\n\n") {
        found.extend(paragraph.split('`').skip(1).step_by(2).map(tidy));
    }
    found
}

/// With one space wherever there are several, or the end of a line.
pub fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The commands of a block: what a line has, lines that end with `\` and loops as one, without comments, and
/// apart where there is a `;`.
pub fn commands(block: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = String::new();
    for line in block.lines() {
        let line = without_comment(line);
        open.push(' ');
        match line.trim_end().strip_suffix('\\') {
            Some(line) => {
                open.push_str(line);
                continue;
            }
            None => open.push_str(line),
        }
        let words = tidy(&open);
        if words.starts_with("for ") && !words.ends_with("done") {
            continue;
        }
        open.clear();
        if words.starts_with("for ") {
            found.push(words);
        } else {
            found.extend(
                split_outside(&words, ';')
                    .into_iter()
                    .map(|part| tidy(&part)),
            );
        }
    }
    found.push(tidy(&open));
    found.retain(|command| !command.is_empty());
    found
}

/// A comment begins with a `#` that has a space or nothing before it, outside of quotes.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if letter == '\'' || letter == '"' => quote = Some(letter),
            None if letter == '#' && before.is_whitespace() => return &line[..at],
            None => {}
        }
        before = letter;
    }
    line
}

fn split_outside(text: &str, at: char) -> Vec<String> {
    let (mut parts, mut quote) = (vec![String::new()], None);
    for letter in text.chars() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if letter == '\'' || letter == '"' => quote = Some(letter),
            None if letter == at => {
                parts.push(String::new());
                continue;
            }
            None => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}

/// The words of a command as a shell has them, as far as documents need it.
pub fn words(command: &str) -> Vec<String> {
    let apart = split_outside(command, ' ');
    let words = apart.iter().filter(|word| !word.is_empty());
    words.map(|word| word.replace(['\'', '"'], "")).collect()
}

/// What is read here must be what stands there.
pub fn check_reading() -> Result<(), String> {
    let text = "One\n    goes on\n\n    a b   # c\n    'd # e' \\\n        f; g\n\nTwo `h\ni` and `j`.\n\n\
                1. An item\n\n       k\n   goes on\n\n```toml\n[l]\n```\n```\nfor m in n; do\n  o\ndone\n```\n";
    let (blocks, prose) = blocks(text);
    let languages: Vec<_> = blocks.iter().map(|block| block.language.as_str()).collect();
    let found: Vec<_> = blocks.iter().map(|block| commands(&block.text)).collect();
    let expected: [&[&str]; 4] = [
        &["a b", "'d # e' f", "g"],
        &["k"],
        &["[l]"],
        &["for m in n; do o done"],
    ];
    if languages != ["", "", "toml", ""] || found != expected || spans(&prose) != ["h i", "j"] {
        return Err(format!("{languages:?} {found:?} {:?}", spans(&prose)));
    }
    let words = words("a  'b c' \"d\"");
    if words == ["a", "b c", "d"] {
        Ok(())
    } else {
        Err(format!("{words:?}"))
    }
}
