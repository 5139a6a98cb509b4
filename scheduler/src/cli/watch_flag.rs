//! `--watch`: repeats a request at intervals, and shows the newest answer. A terminal is repainted
//! each time. On a pipe, only answers that differ from the preceding one are printed.
//!
//! If the scheduler stops answering, the last answer stays on the terminal, with a note. The
//! command repeats the request until an answer comes, so it survives a restart of the scheduler.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use console::{Term, truncate_str};
use tokio::time::MissedTickBehavior;

use super::ConnectionArgs;
use super::connection::{Away, Client};
use super::output::{Format, FormatArgs, Row, ShowFormatArgs, View, relative};
use crate::app::exit::{self, print, sentence, usage};
use crate::machine::clock::now;

/// The default interval between two requests, in seconds.
const USUAL: &str = "2";
/// Minimum and maximum interval, in seconds. A tenth of a second is faster than a person can read,
/// and more than a day is probably a mistake.
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 86_400.0;
/// Maximum time for an answer. After this time, the scheduler is reported as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The flag of commands whose answer changes.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct WatchFlag {
    /// Repeat every SECONDS (0.1 to 86400; 2 if no number is given) until Ctrl-C; on a pipe, print
    /// only what changed
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = USUAL,
        value_parser = interval
    )]
    watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if (SHORTEST..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("must be a number of seconds from {SHORTEST} to {LONGEST}")),
    }
}

/// The flags that determine how an answer is printed.
pub(super) trait Printing {
    fn is_json(&self) -> bool;
    /// Whether successive answers are printed without a separator between them.
    fn is_unseparated(&self) -> bool;
    fn view(&self) -> View;
}

impl<R: Row> Printing for FormatArgs<R> {
    fn is_json(&self) -> bool {
        self.format() == Format::Json
    }

    fn is_unseparated(&self) -> bool {
        matches!(self.format(), Format::Csv | Format::Jsonl)
    }

    fn view(&self) -> View {
        self.view()
    }
}

impl<R: Row> Printing for ShowFormatArgs<R> {
    fn is_json(&self) -> bool {
        self.is_json()
    }

    fn is_unseparated(&self) -> bool {
        false
    }

    fn view(&self) -> View {
        self.view()
    }
}

impl WatchFlag {
    /// Prints an answer as text: once, or repeatedly with `--watch`.
    pub(super) async fn print<T>(
        self,
        connection: &ConnectionArgs,
        format: &impl Printing,
        ask: impl AsyncFn(&Client) -> anyhow::Result<T>,
        text: impl Fn(&T, &View) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        if self.watch.is_some() && format.is_unseparated() {
            return Err(usage(
                "--watch does not print CSV and JSON lines, in which nothing separates two answers: give --format table or json",
            ));
        }
        let mut client = Client::connect(connection).await?;
        let Some(interval) = self.watch else {
            return print(&text(&ask(&client).await?, &format.view())?);
        };
        let work = async {
            let mut ticks = tokio::time::interval(interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut display = Display::new(interval);
            let mut newest = None;
            let mut lost: Option<Lost> = None;
            loop {
                ticks.tick().await;
                match answer(&client, &ask).await {
                    Ok(answer) => {
                        display.found(lost.take());
                        newest = Some(answer);
                    }
                    Err(error) if newest.is_some() && error.is::<Away>() => {
                        let since = lost.map_or_else(now, |lost| lost.since);
                        lost = Some(Lost { why: sentence(&error), since });
                        client.move_on().await;
                    }
                    Err(error) => return Err(error),
                }
                if let Some(newest) = &newest {
                    display.show(newest, format, &text, lost.as_ref())?;
                }
            }
        };
        exit::unless_interrupted(work, String::new).await
    }
}

/// Sends one request. Fails with [`Away`] if the scheduler does not answer in time.
async fn answer<T>(client: &Client, ask: &impl AsyncFn(&Client) -> anyhow::Result<T>) -> anyhow::Result<T> {
    match tokio::time::timeout(PATIENCE, ask(client)).await {
        Ok(answer) => answer,
        Err(_) => Err(Away(format!("no answer from {} within {PATIENCE:?}", client.url())).into()),
    }
}

/// A scheduler that does not answer.
#[derive(Debug)]
struct Lost {
    why: String,
    since: DateTime<Utc>,
}

impl Lost {
    fn line(&self, now: DateTime<Utc>) -> String {
        let since = if now - self.since < TimeDelta::seconds(1) { "now".to_owned() } else { relative(self.since, now) };
        // The time comes first, because a narrow terminal cuts off the end of the line.
        format!("lost since {}, {since}: {}", self.since.format("%H:%M:%S UTC"), self.why)
    }
}

/// The output to which `--watch` prints the answers.
struct Display {
    interval: Duration,
    /// The terminal to repaint, and whether it has already been painted; `None` on a pipe.
    terminal: Option<(Term, bool)>,
    /// The last printed answer, without the times in it.
    printed: Option<String>,
    /// Whether the message that the scheduler is lost has already been printed (only on a pipe).
    told: bool,
}

impl Display {
    fn new(interval: Duration) -> Self {
        let terminal = Term::buffered_stdout();
        let terminal = terminal.is_term().then_some((terminal, false));
        Self { interval, terminal, printed: None, told: false }
    }

    /// If the output is a pipe, prints that the scheduler answers again.
    fn found(&mut self, lost: Option<Lost>) {
        if let Some(lost) = lost
            && std::mem::take(&mut self.told)
        {
            eprintln!("the scheduler answers again; it was lost {}", relative(lost.since, now()));
        }
    }

    fn show<T>(
        &mut self,
        answer: &T,
        format: &impl Printing,
        text: impl Fn(&T, &View) -> anyhow::Result<String>,
        lost: Option<&Lost>,
    ) -> anyhow::Result<()> {
        let view = format.view();
        if let Some((terminal, painted)) = &mut self.terminal {
            let head = match lost {
                None => format!("every {:?}, at {}; Ctrl-C ends", self.interval, view.now.format("%H:%M:%S UTC")),
                Some(lost) => lost.line(view.now),
            };
            let (rows, columns) = terminal.size();
            let page = page(&head, &text(answer, &view)?, rows.into(), columns.into());
            return paint(terminal, std::mem::replace(painted, true), &page).map_err(exit::written);
        }
        match lost {
            Some(lost) if !std::mem::replace(&mut self.told, true) => {
                eprintln!("{}; asking again every {:?}", lost.line(view.now), self.interval);
            }
            _ => {}
        }
        let timeless = text(answer, &View { timeless: true, ..view })?;
        let timeless = if format.is_json() { without_times(&timeless)? } else { timeless };
        if self.printed.as_ref() == Some(&timeless) {
            return Ok(());
        }
        let between = if self.printed.is_some() { "\n" } else { "" };
        self.printed = Some(timeless);
        print(&format!("{between}{}", text(answer, &view)?))
    }
}

/// Writes a page over the preceding one. The output is flushed only once, to avoid flicker.
fn paint(terminal: &Term, painted: bool, page: &str) -> std::io::Result<()> {
    if !painted {
        terminal.clear_screen()?;
    }
    terminal.move_cursor_to(0, 0)?;
    terminal.clear_to_end_of_screen()?;
    terminal.write_str(page)?;
    terminal.flush()
}

/// A page that fits the screen: the line `head`, and as many lines of the answer `text` as fit. The
/// last row is left free for the cursor.
fn page(head: &str, text: &str, rows: usize, columns: usize) -> String {
    let room = rows.saturating_sub(3).max(1);
    let lines: Vec<&str> = text.lines().collect();
    let cut = |line: &str| truncate_str(line, columns, "…").into_owned() + "\n";
    let mut page = cut(head) + "\n";
    // If the text is too long, one row states how many lines are missing.
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    lines.iter().take(shown).for_each(|line| page += &cut(line));
    match lines.len() - shown {
        0 => page,
        more => page + &cut(&format!("… and {more} more lines: enlarge the window, or narrow the list")),
    }
}

/// Removes the times from JSON: fields with names that end in `_at`. Times such as an agent's last
/// heartbeat differ in every answer.
fn without_times(json: &str) -> anyhow::Result<String> {
    fn remove(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                fields.retain(|name, _| !name.ends_with("_at"));
                fields.values_mut().for_each(remove);
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(remove),
            _ => {}
        }
    }
    let mut value = serde_json::from_str(json)?;
    remove(&mut value);
    Ok(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds_in_its_range() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("0.5s"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "100000", "soon", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_fits_the_screen_and_says_what_is_missing() {
        let text: String = (0..30).map(|line| format!("line {line} {}\n", "长".repeat(40))).collect();
        let page = page("every 2s", &text, 12, 40);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.len(), 11);
        assert!(lines.iter().all(|line| console::measure_text_width(line) <= 40), "{page}");
        assert_eq!((lines[0], lines[1]), ("every 2s", ""));
        assert!(lines[10].starts_with("… and 22 more lines"), "{page}");
        assert_eq!(super::page("every 2s", "a\nb\n", 12, 40), "every 2s\n\na\nb\n");
    }

    #[test]
    fn an_answer_that_differs_only_in_its_times_is_the_same() {
        let answer = |at: &str, slots| format!(r#"[{{"name":"a","seen_at":"{at}","slots":{slots}}}]"#);
        let same = |one: String, other: String| without_times(&one).unwrap() == without_times(&other).unwrap();
        assert!(same(answer("1", 2), answer("2", 2)));
        assert!(!same(answer("1", 2), answer("1", 3)));
    }

    #[test]
    fn a_lost_scheduler_is_shown_with_the_time_since_when() {
        let since = DateTime::UNIX_EPOCH;
        let lost = Lost { why: "no scheduler answers".to_owned(), since };
        assert_eq!(lost.line(since), "lost since 00:00:00 UTC, now: no scheduler answers");
        let later = since + TimeDelta::seconds(90);
        assert_eq!(lost.line(later), "lost since 00:00:00 UTC, 90 s ago: no scheduler answers");
    }
}
