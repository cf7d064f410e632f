//! Heat maps, stages, and the verdict, as one HTML file without references to other files.

use std::fmt::Write;

use isolane_observe::snapshot::Snapshot;

use super::{By, HeatMap, stages};
use crate::text::{date, escaped, shown_name, time_of_day};
use crate::window;

const STYLE: &str = "body{font:14px/1.45 'DejaVu Sans',Verdana,Arial,sans-serif;color:#222;background:#fff;\
    max-width:1000px;margin:24px auto;padding:0 16px}h1{font-size:22px;margin:0}h2{font-size:17px;\
    margin:32px 0 8px}.soft{color:#666}pre{background:#f5f5f5;border-left:4px solid #8a2a6b;padding:10px 14px;\
    overflow-x:auto;white-space:pre-wrap;font:13px/1.5 'DejaVu Sans Mono',monospace}table{border-collapse:collapse;\
    width:100%;font-size:12px}th,td{text-align:left;vertical-align:top;padding:5px 8px;border-bottom:1px solid #ddd}\
    th{border-bottom:2px solid #888}.n{text-align:right;white-space:nowrap}svg{max-width:100%;height:auto}\
    .stage{display:block;white-space:nowrap}.stage i{display:block;height:3px;margin-bottom:3px;background:#b93a62}\
    nav a{margin-right:14px}@media print{nav{display:none}svg{page-break-inside:avoid}}";

/// Writes the document. The heat maps of `first` come before the others; `verdict` is plain text.
pub fn document(snapshot: &Snapshot, first: By, verdict: Option<&str>) -> String {
    let program = &snapshot.program;
    let title = format!("{} {} on {}", program.name, program.pid, program.machine);
    let title = escaped(&shown_name(&title, 200));
    let (numbers, seconds) = window::sum_of_steps(&snapshot.steps);
    let order = [first].into_iter().chain(By::ALL.into_iter().filter(|by| *by != first));
    let maps: Vec<HeatMap> = order.filter_map(|by| HeatMap::new(snapshot, by)).collect();
    let mut html = format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta http-equiv=Content-Security-Policy \
         content=\"default-src 'none'; style-src 'unsafe-inline'\"><meta name=viewport \
         content=\"width=device-width\"><title>Isolane: {title}</title><style>{STYLE}</style></head><body>\
         <h1>{title}</h1><p class=soft>{} {} UTC, {seconds:.0} s recorded, version {}</p>",
        date(snapshot.at_unix_ms),
        time_of_day(snapshot.at_unix_ms),
        escaped(&shown_name(&program.version, 80)),
    );
    // Writing to a `String` does not fail.
    let _ = write!(html, "<nav>");
    if verdict.is_some() {
        let _ = write!(html, "<a href=\"#verdict\">Verdict</a>");
    }
    let _ = write!(html, "<a href=\"#stages\">Stages</a>");
    for map in &maps {
        let name = map.by.name();
        let _ = write!(html, "<a href=\"#{name}\">By {name}</a>");
    }
    let _ = write!(html, "</nav>");
    if let Some(verdict) = verdict {
        let _ = write!(html, "<h2 id=verdict>Verdict</h2><pre>{}</pre>", escaped(verdict));
    }
    let _ = write!(html, "<h2 id=stages>Stages</h2>{}", stages::table(snapshot, &numbers));
    for map in &maps {
        let name = map.by.name();
        let _ = write!(html, "<h2 id={name}>By {name}</h2>{}", map.to_svg());
    }
    html + "</body></html>\n"
}
