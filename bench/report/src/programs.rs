//! The costs of the BPF programs, and the CPU's time by who had it.

use crate::{
    model::{Column, Table, Text},
    number,
    schema::Run,
};

/// BPF programs; None where none was counted.
pub fn table(run: &Run) -> Option<Table> {
    if run.programs.is_empty() {
        return None;
    }
    let mut table = Table::new(
        "BPF programs under load",
        vec![
            Column::words("program"),
            Column::words("kind"),
            Column::words("counted under"),
            Column::numbers("runs"),
            Column::numbers("mean, ns"),
            Column::numbers("instructions after JIT"),
            Column::numbers("bytes after JIT"),
            Column::numbers("instructions verified"),
        ],
    );
    for program in &run.programs {
        let count = |n: u64| Text::from(number::grouped(n as f64));
        table.row(vec![
            Text::new().code(&*program.name),
            Text::new().code(&*program.kind),
            Text::new().code(&*program.experiment),
            count(program.runs),
            number::short(program.mean_ns).into(),
            program
                .jited_instructions
                .map_or_else(|| number::NONE.into(), count),
            count(program.jited_bytes),
            count(program.verified_instructions),
        ]);
    }
    Some(table)
}

/// The users of the CPUs; None where nothing was profiled.
pub fn profiles(run: &Run) -> Option<Table> {
    if run.profiles.is_empty() {
        return None;
    }
    let mut names: Vec<&String> = run.profiles.iter().flat_map(|p| p.shares.keys()).collect();
    names.sort();
    names.dedup();
    let mut columns = vec![Column::words("path"), Column::words("experiment")];
    columns.extend(names.iter().map(|name| Column::numbers(name.as_str())));
    columns.push(Column::numbers("samples"));
    columns.push(Column::words("flame graph"));
    let mut table = Table::new("Share of all CPUs' busy time, from a profile", columns);
    for profile in &run.profiles {
        let mut cells = vec![Text::new().code(&*profile.experiment)];
        for name in &names {
            let share = profile.shares.get(*name).filter(|s| s.is_finite());
            let text = share.map_or_else(|| number::NONE.into(), |s| format!("{:.1} %", s * 100.0));
            cells.push(text.into());
        }
        cells.push(number::grouped(profile.samples as f64).into());
        cells.push(match &profile.flame_graph {
            Some(file) => Text::new().code(&**file),
            None => number::NONE.into(),
        });
        table.path_row(&profile.path, cells);
    }
    Some(table)
}
