//! Formats results as a table.

/// Formats a header and rows as lines of text. Each column is as wide as its widest cell.
pub fn text_table<H: AsRef<str>>(header: &[H], rows: &[Vec<String>]) -> String {
    let header: Vec<&str> = header.iter().map(AsRef::as_ref).collect();
    let width = |(column, name): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.fold(name.chars().count(), usize::max)
    };
    let widths: Vec<usize> = header.iter().enumerate().map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = line(&mut header.iter().copied()) + &line(&mut rules.iter().map(String::as_str));
    text.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["random".to_owned(), "1".to_owned()], vec!["é".to_owned(), "23.45".to_owned()]];
        assert_eq!(text_table(&["name", "ms"], &rows), "name    ms\n------  -----\nrandom  1\né       23.45\n");
        assert_eq!(text_table(&["name", "ms"], &[]), "name  ms\n----  --\n");
    }
}
