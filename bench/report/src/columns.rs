//! Columns in a terminal.

/// The lines of these rows, with columns as wide as they must be; those from `numbers` on are set right.
pub fn aligned(rows: &[Vec<String>], numbers: usize) -> Vec<String> {
    let width = |n: usize| {
        let cells = rows.iter().filter_map(|row| row.get(n));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(n, cell)| match n < numbers {
            true => format!("{cell:<0$}", width(n)),
            false => format!("{cell:>0$}", width(n)),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
