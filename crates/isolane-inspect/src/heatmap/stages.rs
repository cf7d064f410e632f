//! Table of stages, as HTML.

use std::fmt::Write;

use isolane_observe::snapshot::{Numbers, Series, Snapshot};

use crate::text::{duration, escaped, grouped, shown_name};
use crate::window;

/// Maximum number of rows.
const MAX_ROWS: usize = 200;

/// Returns a row for each operation of the volumes that hosts see. Writing to a `String` does not fail.
pub fn table(snapshot: &Snapshot, numbers: &Numbers) -> String {
    let sums = window::by_operation(numbers);
    let volumes = snapshot.volumes.iter().filter(|volume| volume.parent.is_none());
    let rows = volumes.flat_map(|volume| {
        let sums = sums.range((volume.id, FIRST)..).take_while(|((id, _), _)| *id == volume.id);
        sums.map(|((_, operation), sum)| (&volume.name, operation.name(), sum))
    });
    let mut html = String::from(
        "<table><thead><tr><th>Volume<th>Operation<th class=n>Operations<th class=n>p50<th class=n>p99\
         <th class=n>p99.9<th class=n>Max<th>Stages: p50 / p99, and share of the time</thead><tbody>",
    );
    for (name, operation, sum) in rows.take(MAX_ROWS) {
        let _ = write!(html, "<tr><td>{}<td>{operation}", escaped(&shown_name(name, 60)));
        let _ = write!(html, "<td class=n>{}", grouped(sum.total.count()));
        for quantile in [0.5, 0.99, 0.999] {
            let _ = write!(html, "<td class=n>{}", duration(sum.total.quantile(quantile)));
        }
        let _ = writeln!(html, "<td class=n>{}<td>{}", duration(sum.total.max_bound()), stages(sum));
    }
    html + "</tbody></table>"
}

fn stages(sum: &Series) -> String {
    let all = sum.stages.iter().fold(0, |all: u64, at| all.saturating_add(at.times.sum_ns())).max(1);
    let mut html = String::new();
    for stage in sum.side.stages().iter().filter(|stage| sum.stage(**stage).is_some()) {
        let share = sum.stage_sum_ns(*stage) as f64 / all as f64;
        let _ = write!(
            html,
            "<span class=stage><b>{}</b> {} / {}, {:.0} %<i style=\"width:{:.0}%\"></i></span>",
            stage.name(),
            duration(sum.stage_quantile(*stage, 0.5)),
            duration(sum.stage_quantile(*stage, 0.99)),
            share * 100.0,
            share * 100.0,
        );
    }
    html
}

const FIRST: isolane_observe::stage::Operation = isolane_observe::stage::Operation::ALL[0];
