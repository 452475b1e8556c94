//! `sluice top`: `sluice status`, live.

mod model;
mod verbs;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;

use crate::args::TopArgs;
use crate::error::Outcome;
use crate::error::{Failure, reason};
use crate::status::Source;
use crate::terminal::Style;

use model::Model;
use verbs::Asker;
use view::Palette;

/// The longest wait for a key before signals are looked at.
const SIGNAL_LATENCY_MAX: Duration = Duration::from_millis(200);
/// A filter has no use for more characters.
const FILTER_CHARACTERS_MAX: usize = 60;

/// What a key asks for, beyond changing the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Nothing,
    Quit,
    Suspend,
    Refresh,
}

/// Signals that have arrived since they were last looked at.
struct Signals {
    /// The number of the signal that asks to end, or 0.
    end: Arc<AtomicUsize>,
    suspend: Arc<AtomicBool>,
}

impl Signals {
    fn register() -> io::Result<Self> {
        let signals = Self {
            end: Arc::new(AtomicUsize::new(0)),
            suspend: Arc::new(AtomicBool::new(false)),
        };
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            let number = usize::try_from(signal).map_err(io::Error::other)?;
            signal_hook::flag::register_usize(signal, Arc::clone(&signals.end), number)?;
        }
        signal_hook::flag::register(SIGTSTP, Arc::clone(&signals.suspend))?;
        Ok(signals)
    }

    fn end(&self) -> Option<i32> {
        match self.end.load(Ordering::Relaxed) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }
}

/// Runs the command.
pub fn run(args: &TopArgs) -> Outcome {
    if !io::stdout().is_terminal() {
        return Err(Failure::new(
            "standard output is no terminal",
            "use 'sluice status --watch' or 'sluice status --json'",
        ));
    }
    let source = Source::new(args.socket.as_deref(), args.all)?;
    let failed = |error: io::Error| {
        Failure::new(
            format!("cannot use the terminal: {}", reason(&error)),
            "use 'sluice status --watch'",
        )
    };
    let signals = Signals::register().map_err(failed)?;
    let mut terminal = take_terminal().map_err(failed)?;
    let ended = Screen {
        asker: Asker::start(source.sees_all_verbs()),
        source,
        signals: &signals,
        model: Model::new(),
        palette: Palette {
            colour: Style::for_stream(&io::stdout()) != Style::PLAIN,
        },
        interval: args.interval,
    }
    .run(&mut terminal);
    give_terminal_back();
    ended.map_err(failed)?;
    if let Some(signal) = signals.end() {
        // The caller learns that a signal ended this, as for any program.
        let _ = emulate_default_handler(signal);
    }
    Ok(0)
}

struct Screen<'a> {
    source: Source,
    asker: Asker,
    signals: &'a Signals,
    model: Model,
    palette: Palette,
    interval: Duration,
}

impl Screen<'_> {
    fn run(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let mut looked = Instant::now();
        self.asker.ask();
        self.model.update(self.source.ask(), Duration::ZERO);
        loop {
            if !self.model.paused
                && let Some((verbs, elapsed)) = self.asker.answer()
            {
                self.model.verbs.update(&verbs, elapsed);
            }
            terminal.draw(|frame| view::draw(frame, &self.model, self.palette))?;
            match self.wait(looked + self.interval)? {
                Wish::Quit => return Ok(()),
                Wish::Suspend => suspend(terminal)?,
                Wish::Refresh if !self.model.paused => {
                    self.asker.ask();
                    self.source.look_again();
                    let answers = self.source.ask();
                    let now = Instant::now();
                    self.model.update(answers, now - looked);
                    looked = now;
                }
                Wish::Refresh => looked = Instant::now(),
                Wish::Nothing => {}
            }
        }
    }

    /// Waits for a key, a signal, or the time of the next look.
    fn wait(&mut self, next_look: Instant) -> io::Result<Wish> {
        loop {
            if self.signals.end().is_some() {
                return Ok(Wish::Quit);
            }
            if self.signals.suspend.swap(false, Ordering::Relaxed) {
                return Ok(Wish::Suspend);
            }
            let left = next_look.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Wish::Refresh);
            }
            if !event::poll(left.min(SIGNAL_LATENCY_MAX))? {
                continue;
            }
            return Ok(match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let page = ratatui::crossterm::terminal::size()
                        .map_or(1, |(_, height)| view::table_rows(height).max(1));
                    act(&mut self.model, key, page)
                }
                // A changed size is drawn anew.
                _ => Wish::Nothing,
            });
        }
    }
}

/// What a key does. `page`: rows that the table shows.
fn act(model: &mut Model, key: KeyEvent, page: usize) -> Wish {
    let page = isize::try_from(page).unwrap_or(isize::MAX);
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c' | 'd') => Wish::Quit,
            KeyCode::Char('z') => Wish::Suspend,
            _ => Wish::Nothing,
        };
    }
    if model.typing {
        match key.code {
            KeyCode::Enter => model.typing = false,
            KeyCode::Esc => {
                model.typing = false;
                model.filter.clear();
            }
            KeyCode::Backspace => drop(model.filter.pop()),
            KeyCode::Char(c) if model.filter.chars().count() < FILTER_CHARACTERS_MAX => {
                model.filter.push(c);
            }
            _ => {}
        }
        model.select(0);
        return Wish::Nothing;
    }
    match key.code {
        KeyCode::Char('q') => return Wish::Quit,
        KeyCode::Char('s') => model.sort = model.sort.next(),
        KeyCode::Char('r') => model.reverse = !model.reverse,
        KeyCode::Char('p' | ' ') => model.paused = !model.paused,
        KeyCode::Char('/') => {
            model.typing = true;
            model.filter.clear();
        }
        KeyCode::Esc => model.filter.clear(),
        KeyCode::Down | KeyCode::Char('j') => model.select(1),
        KeyCode::Up | KeyCode::Char('k') => model.select(-1),
        KeyCode::PageDown => model.select(page),
        KeyCode::PageUp => model.select(-page),
        KeyCode::Home => model.selected = 0,
        KeyCode::End => model.select(isize::MAX),
        _ => {}
    }
    Wish::Nothing
}

/// Gives the terminal back, stops as Ctrl-Z stops any program, and takes it again after `fg`.
fn suspend(terminal: &mut DefaultTerminal) -> io::Result<()> {
    give_terminal_back();
    emulate_default_handler(SIGTSTP)?;
    // A new one knows of no cell that is on the screen, so all of it is drawn.
    *terminal = take_terminal()?;
    Ok(())
}

/// Takes the terminal: another screen, keys without line editing. A panic gives it back before
/// its message is printed.
fn take_terminal() -> io::Result<DefaultTerminal> {
    // ratatui puts a hook before the present one: theirs, which restores all but the cursor.
    let terminal = ratatui::try_init()?;
    let restore = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        show_cursor();
        restore(panic);
    }));
    Ok(terminal)
}

fn give_terminal_back() {
    show_cursor();
    ratatui::restore();
}

/// Ratatui hides the cursor and shows it when a value is dropped, which a signal or an aborting
/// panic does not wait for.
fn show_cursor() {
    // A terminal that cannot be written to has no cursor to show.
    let _ = execute!(io::stdout(), Show);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(model: &mut Model, code: KeyCode) -> Wish {
        act(model, KeyEvent::new(code, KeyModifiers::NONE), 10)
    }

    #[test]
    fn letters_belong_to_the_filter_while_it_is_typed() {
        let mut model = Model::new();
        press(&mut model, KeyCode::Char('/'));
        for c in "quz".chars() {
            assert_eq!(press(&mut model, KeyCode::Char(c)), Wish::Nothing);
        }
        press(&mut model, KeyCode::Backspace);
        press(&mut model, KeyCode::Enter);
        assert_eq!(model.filter, "qu");
        assert_eq!(press(&mut model, KeyCode::Char('q')), Wish::Quit);
        press(&mut model, KeyCode::Esc);
        assert_eq!(model.filter, "");
    }

    #[test]
    fn a_filter_cannot_grow_without_bound() {
        let mut model = Model::new();
        press(&mut model, KeyCode::Char('/'));
        for _ in 0..1000 {
            press(&mut model, KeyCode::Char('x'));
        }
        assert_eq!(model.filter.len(), FILTER_CHARACTERS_MAX);
    }

    #[test]
    fn control_keys_work_in_every_mode() {
        let mut model = Model::new();
        model.typing = true;
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!(act(&mut model, control('c'), 1), Wish::Quit);
        assert_eq!(act(&mut model, control('z'), 1), Wish::Suspend);
        assert_eq!(model.filter, "");
    }
}
