//! Text tables whose columns fit a width.

/// How a column's cells are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Which part of a cell stays when there is no room for all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Start,
    /// Of an address: the port.
    End,
    /// Of `program[pid]`: some of each.
    Both,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    pub align: Align,
    /// Columns are left out in the order of this number, highest first, until the rest fits.
    /// Zero is never left out.
    pub sacrifice: u8,
    /// A narrow table cuts the cells of this column down to this many characters, if need be.
    pub shrinks_to: Option<usize>,
    pub keep: Keep,
}

impl Column {
    pub const fn left(title: &'static str) -> Self {
        Self {
            title,
            align: Align::Left,
            sacrifice: 0,
            shrinks_to: None,
            keep: Keep::Start,
        }
    }
    pub const fn right(title: &'static str) -> Self {
        Self {
            align: Align::Right,
            ..Self::left(title)
        }
    }
    pub const fn sacrifice(mut self, order: u8) -> Self {
        self.sacrifice = order;
        self
    }
    pub const fn shrinks_to(mut self, characters: usize, keep: Keep) -> Self {
        self.shrinks_to = Some(characters);
        self.keep = keep;
        self
    }
}

/// The width of each column that is shown, `None` for those left out.
pub type Widths = Vec<Option<usize>>;

const GAP: usize = 1;

fn total(widths: &Widths) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

/// Decides which columns are shown, and how wide, so that rows need at most `limit` characters
/// (`None`: everything is shown in full). First the shrinking columns give way, then whole
/// columns go.
pub fn fit(columns: &[Column], rows: &[Vec<String>], limit: Option<usize>) -> Widths {
    let mut widths: Widths = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows.iter().filter_map(|row| row.get(index));
            let widest = cells.map(|cell| characters(cell)).max().unwrap_or(0);
            Some(widest.max(characters(column.title)))
        })
        .collect();
    let Some(limit) = limit else {
        return widths;
    };
    loop {
        let mut excess = total(&widths).saturating_sub(limit);
        let shrinkable: usize = columns
            .iter()
            .zip(&widths)
            .filter_map(|(column, width)| Some(width.as_ref()?.saturating_sub(column.shrinks_to?)))
            .sum();
        let next = columns
            .iter()
            .enumerate()
            .filter(|(index, column)| column.sacrifice > 0 && widths[*index].is_some())
            .max_by_key(|(_, column)| column.sacrifice);
        if excess > shrinkable
            && let Some((index, _)) = next
        {
            widths[index] = None;
            continue;
        }
        // The widest gives way first, so that no column is cut while another is generous.
        while excess > 0 {
            let widest = columns
                .iter()
                .zip(&mut widths)
                .filter_map(|(column, width)| Some((width.as_mut()?, column.shrinks_to?)))
                .filter(|(width, least)| **width > *least)
                .max_by_key(|(width, _)| **width);
            let Some((width, _)) = widest else { break };
            *width -= 1;
            excess -= 1;
        }
        return widths;
    }
}

/// The same for a table whose last column says what is wrong: where nothing is, the room belongs to
/// the other columns.
pub fn fit_with_reasons(columns: &[Column], rows: &[Vec<String>], limit: Option<usize>) -> Widths {
    let is_empty = |row: &Vec<String>| row.last().is_none_or(String::is_empty);
    match columns.split_last() {
        Some((_, others)) if rows.iter().all(is_empty) => {
            let mut widths = fit(others, rows, limit);
            widths.push(None);
            widths
        }
        _ => fit(columns, rows, limit),
    }
}

/// Cuts text to `width` characters, one of which says that something is missing.
pub fn cut(text: &str, width: usize, keep: Keep) -> String {
    let length = characters(text);
    if length <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let start = match keep {
        Keep::Start => room,
        Keep::End => 0,
        Keep::Both => room.div_ceil(2),
    };
    let end = room - start;
    let mut cut: String = text.chars().take(start).collect();
    if width > 0 {
        cut.push('…');
    }
    cut.extend(text.chars().skip(length - end));
    cut
}

/// One line of the table, without trailing blanks.
pub fn line(columns: &[Column], widths: &Widths, cells: &[String]) -> String {
    let mut line = String::new();
    let mut first = true;
    for ((column, width), cell) in columns.iter().zip(widths).zip(cells) {
        let Some(width) = *width else { continue };
        if !first {
            line.push_str(&" ".repeat(GAP));
        }
        first = false;
        let cell = cut(cell, width, column.keep);
        let blanks = " ".repeat(width - characters(&cell));
        match column.align {
            Align::Left => line.extend([cell, blanks]),
            Align::Right => line.extend([blanks, cell]),
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// The line of titles.
pub fn titles(columns: &[Column], widths: &Widths) -> String {
    let titles: Vec<String> = columns.iter().map(|c| c.title.to_owned()).collect();
    line(columns, widths, &titles)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::left("NAME").shrinks_to(6, Keep::Start),
        Column::right("BYTES"),
        Column::right("LESS").sacrifice(1),
        Column::right("LEAST").sacrifice(2),
    ];

    fn rows() -> Vec<Vec<String>> {
        vec![
            ["a-long-name", "12", "3", "4"].map(str::to_owned).to_vec(),
            ["größe", "1", "3", "4"].map(str::to_owned).to_vec(),
        ]
    }

    fn render(limit: Option<usize>) -> Vec<String> {
        let rows = rows();
        let widths = fit(&COLUMNS, &rows, limit);
        let mut lines = vec![titles(&COLUMNS, &widths)];
        lines.extend(rows.iter().map(|row| line(&COLUMNS, &widths, row)));
        lines
    }

    #[test]
    fn everything_is_shown_without_a_limit() {
        assert_eq!(
            render(None),
            [
                "NAME        BYTES LESS LEAST",
                "a-long-name    12    3     4",
                "größe           1    3     4",
            ]
        );
    }

    #[test]
    fn names_shrink_before_columns_go() {
        assert_eq!(render(Some(25))[1], "a-long-…    12    3     4");
        assert_eq!(render(Some(18))[0], "NAME    BYTES LESS");
        assert_eq!(render(Some(12))[1], "a-lon…    12");
    }

    #[test]
    fn no_line_is_wider_than_the_limit_while_columns_can_go() {
        for limit in 12..40 {
            for line in render(Some(limit)) {
                assert!(characters(&line) <= limit, "{limit}: {line}");
            }
        }
    }

    #[test]
    fn cutting_says_so() {
        assert_eq!(cut("abc", 3, Keep::Start), "abc");
        assert_eq!(cut("abcd", 3, Keep::Start), "ab…");
        assert_eq!(cut("abcd", 0, Keep::Start), "");
        assert_eq!(cut("abcd", 0, Keep::End), "");
        assert_eq!(cut("127.0.0.1:6379", 8, Keep::End), "….1:6379");
        assert_eq!(cut("redis-benchmark[77]", 10, Keep::Both), "redis…[77]");
    }
}
