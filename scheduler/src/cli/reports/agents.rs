//! The columns of `landfall report agents`.

use landfall_proto::v1;

use crate::cli::agents::service::{service_tone, service_words};
use crate::cli::output::{self, Column, Row, Tone, count_cell, level_cell, millis_cell, size_cell};

impl Row for v1::AgentRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.agent.clone()),
        ("city", |row, _| row.city.clone()),
        (">assigned", |row, _| count_cell(row.assigned)),
        (">complete", |row, _| count_cell(row.complete)),
        (">truncated", |row, _| count_cell(row.truncated)),
        (">failed", |row, _| count_cell(row.failed)),
        (">pages", |row, _| count_cell(row.pages)),
        (">size", |row, _| size_cell(row.bytes)),
        (">rtt ms", |row, _| millis_cell(row.mean_rtt)),
        ("+carrier", |row, _| row.carrier.clone()),
        ("+landmark", |row, _| output::yes_cell(row.landmark)),
        ("+!service", |row, _| service_words(row.service(), "see landfall agents list")),
        ("+>load", |row, _| level_cell(row.load_level)),
    ];

    fn tone(&self) -> Tone {
        service_tone(self.service())
    }
}
