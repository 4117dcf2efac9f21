//! How far long work has come, on stderr, if a person looks at it there: never in a pipe, and never beside JSON.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar up to `len`, or a count where nobody knows how much there is.
pub(crate) fn bar(len: Option<u64>, is_json: bool) -> ProgressBar {
    if is_json || !is_seen() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match len {
        Some(len) => (ProgressBar::new(len), BAR),
        None => (ProgressBar::new_spinner(), COUNT),
    };
    // The templates are ours, and a test reads them.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(TICK);
    bar
}

/// Whether a person looks at stderr: what it costs to know how much there is may be spent.
pub(crate) fn is_seen() -> bool {
    std::io::stderr().is_terminal()
}

const BAR: &str = "{elapsed_precise} {bar:40} {human_pos}/{human_len} {per_sec} {eta}";

const COUNT: &str = "{elapsed_precise} {spinner} {msg} {human_pos} {per_sec}";

/// Often enough to see that it moves.
const TICK: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_can_be_read() {
        for template in [BAR, COUNT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
