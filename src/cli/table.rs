//! Tables as text that is readable on a terminal, in a file and in Markdown.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Lays out rows under headers; columns from `numbers_from` on are aligned to the right.
pub(super) fn layout(headers: &[&str], rows: &[Vec<String>], numbers_from: usize) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headers);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(numbers_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}
