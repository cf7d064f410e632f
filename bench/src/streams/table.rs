//! The tables of a suite, in Markdown: medians, and ratios taken in each round.

use std::fmt::Write;

use super::options::{Via, Work};
use super::run::Report;
use super::suite::{COMBINING, Suite};
use crate::measure::Spread;

/// All tables.
pub fn tables(suite: &Suite) -> String {
    let mut text = format!("{}\n", suite.about);
    for work in [Work::Transmit, Work::Receive] {
        throughput(suite, work, &mut text);
    }
    combining(suite, &mut text);
    others(suite, &mut text);
    engine_locks(suite, &mut text);
    text
}

/// Native programs that combine messages themselves, beside the plain one and the engine.
fn combining(suite: &Suite, text: &mut String) {
    let _ = writeln!(
        text,
        "\n| Transmit, native | MB/s: 64 KiB buffer, Nagle, MSG_MORE | application ns a message | all ns a message | engine's rate, of each |\n\
         |---|---|---|---|---|"
    );
    for engine in suite.cases.iter().filter(|case| is(case, Work::Transmit, Via::Engine) && !case[0].lock) {
        let size = engine[0].size;
        let of = |via| suite.cases.iter().find(|case| is(case, Work::Transmit, via) && case[0].size == size);
        let [Some(buffered), Some(nagle), Some(more)] = COMBINING.map(of) else { continue };
        let all = |of: fn(&Report) -> f64, digits: usize| {
            let each = [buffered, nagle, more].map(|case| format!("{:.digits$}", median(case, of)));
            each.join(", ")
        };
        let ratios = [buffered, nagle, more]
            .map(|case| format!("{:.2}", ratio(engine, case, |report| report.mb_per_s).median));
        let _ = writeln!(
            text,
            "| {size} B | {} | {} | {} | {} |",
            all(|report| report.mb_per_s, 1),
            all(|report| report.app_ns, 0),
            all(|report| report.total_ns, 0),
            ratios.join(", "),
        );
    }
}

fn throughput(suite: &Suite, work: Work, text: &mut String) {
    let _ = writeln!(
        text,
        "\n| {work:?} | MB/s: native, engine | ratio | application ns a message | of native, per byte | all ns a message | of native, per byte |\n\
         |---|---|---|---|---|---|---|"
    );
    for native in suite.cases.iter().filter(|case| is(case, work, Via::Native)) {
        let Some(engine) = pair(suite, native) else { continue };
        let size = native[0].size;
        let both = |of: fn(&Report) -> f64, digits: usize| {
            format!("{:.digits$}, {:.digits$}", median(native, of), median(engine, of))
        };
        let ratio = |of: fn(&Report) -> f64| ratio(engine, native, of);
        let rate = ratio(|report| report.mb_per_s);
        let _ = writeln!(
            text,
            "| {size} B | {} | {:.2} ({:.2}–{:.2}) | {} | {:.2} | {} | {:.2} |",
            both(|report| report.mb_per_s, 1),
            rate.median,
            rate.min,
            rate.max,
            both(|report| report.app_ns, 0),
            ratio(|report| report.app_ns).median,
            both(|report| report.total_ns, 0),
            ratio(|report| report.total_ns).median,
        );
    }
}

fn others(suite: &Suite, text: &mut String) {
    let find = |work, via, lock| {
        suite.cases.iter().find(|case| is(case, work, via) && case[0].lock == lock && case[0].size == 64)
    };
    let _ = writeln!(text, "\n| 64 B | | |\n|---|---|---|");
    for via in [Via::Native, Via::Engine] {
        if let Some(case) = find(Work::Echo, via, false) {
            let of = |at: usize| move |report: &Report| report.round_trip_us.unwrap_or_default()[at];
            let (mean, median_us, most) = (median(case, of(0)), median(case, of(1)), median(case, of(2)));
            let _ = writeln!(
                text,
                "| echo, {via:?} | mean {mean:.1} µs, median {median_us:.1} µs | p99 {most:.1} µs |"
            );
        }
    }
    for via in [Via::Native, Via::Engine] {
        if let Some(case) = find(Work::Compute, via, false) {
            let share = 100.0 * median(case, |report| report.compute_share.unwrap_or_default());
            let app = median(case, |report| report.app_ns);
            let _ = writeln!(
                text,
                "| computing beside 20,000 messages a second, {via:?} | {share:.1} % of its speed alone | application {app:.0} ns a message |"
            );
        }
    }
    if let (Some(with), Some(without)) =
        (find(Work::Transmit, Via::Engine, true), find(Work::Transmit, Via::Engine, false))
    {
        let rate = ratio(with, without, |report| report.mb_per_s);
        let app = ratio(with, without, |report| report.app_ns);
        let _ = writeln!(
            text,
            "| transmit, Engine, with one needless lock a message | {:.2} of the rate | {:.2} of the application's time a message |",
            rate.median, app.median
        );
    }
}

/// A needless lock in the engine, at each look at a stream, beside the same without.
fn engine_locks(suite: &Suite, text: &mut String) {
    if suite.engine_locks.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n| Transmit, 64 B, lock in the engine: connections | MB/s: without, with | ratio | engine ns a message: without, with | ratio | all ns a message: without, with | ratio |\n\
         |---|---|---|---|---|---|---|"
    );
    for [without, with] in &suite.engine_locks {
        let column = |of: fn(&Report) -> f64| {
            let (ratio, without, with) = (ratio(with, without, of), median(without, of), median(with, of));
            format!("{without:.1}, {with:.1} | {:.2} ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max)
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            without.first().map_or(0, |report| report.connections),
            column(|report| report.mb_per_s),
            column(|report| report.engine_ns),
            column(|report| report.total_ns),
        );
    }
}

fn is(case: &[Report], work: Work, via: Via) -> bool {
    case.first().is_some_and(|report| report.work == work && report.via == via)
}

fn pair<'a>(suite: &'a Suite, native: &[Report]) -> Option<&'a Vec<Report>> {
    let is_pair = |case: &&Vec<Report>| {
        is(case, native[0].work, Via::Engine) && case[0].size == native[0].size && !case[0].lock
    };
    suite.cases.iter().find(is_pair)
}

fn median(case: &[Report], of: impl Fn(&Report) -> f64) -> f64 {
    spread(case.iter().map(of).collect()).median
}

/// The rounds' ratios.
fn ratio(above: &[Report], below: &[Report], of: impl Fn(&Report) -> f64) -> Spread {
    spread(above.iter().zip(below).map(|(above, below)| of(above) / of(below)).collect())
}

/// Of nothing there are no numbers.
fn spread(values: Vec<f64>) -> Spread {
    Spread::among(values).unwrap_or(Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(via: Via, mb_per_s: f64) -> Report {
        Report {
            work: Work::Transmit,
            via,
            size: 64,
            lock: false,
            engine_lock: false,
            connections: 1,
            messages_per_s: 1.0,
            mb_per_s,
            app_ns: 100.0 / mb_per_s,
            engine_ns: 0.0,
            total_ns: 200.0 / mb_per_s,
            round_trip_us: None,
            compute_share: None,
        }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let native = vec![report(Via::Native, 1.0), report(Via::Native, 10.0), report(Via::Native, 2.0)];
        let engine = vec![report(Via::Engine, 4.0), report(Via::Engine, 40.0), report(Via::Engine, 6.0)];
        let suite = Suite {
            about: "about".to_owned(),
            seconds: 1.0,
            cases: vec![native, engine],
            engine_locks: Vec::new(),
        };
        let text = tables(&suite);
        assert!(text.contains("| 64 B | 2.0, 6.0 | 4.00 (3.00–4.00) |"), "{text}");
    }

    #[test]
    fn ways_of_combining_messages_are_columns() {
        let vias = [Via::Engine, Via::Buffered, Via::Nagle, Via::More];
        let cases =
            vias.iter().zip([8.0, 4.0, 2.0, 1.0]).map(|(via, rate)| vec![report(*via, rate)]).collect();
        let suite = Suite { about: "about".to_owned(), seconds: 1.0, cases, engine_locks: Vec::new() };
        let text = tables(&suite);
        assert!(
            text.contains("| 64 B | 4.0, 2.0, 1.0 | 25, 50, 100 | 50, 100, 200 | 2.00, 4.00, 8.00 |"),
            "{text}"
        );
    }

    #[test]
    fn shows_locks_in_the_engine_by_connections() {
        let with = |rates: [f64; 3], engine_lock| {
            let of = |rate| Report { engine_lock, connections: 128, ..report(Via::Engine, rate) };
            rates.map(of).to_vec()
        };
        let engine_locks = vec![[with([10.0, 20.0, 30.0], false), with([9.0, 16.0, 21.0], true)]];
        let text =
            tables(&Suite { about: "about".to_owned(), seconds: 1.0, cases: Vec::new(), engine_locks });
        assert!(text.contains("| 128 | 20.0, 16.0 | 0.80 (0.70–0.90) |"), "{text}");
    }
}
