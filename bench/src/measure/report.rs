//! What was measured, and on what: the JSON that tables and drawings are made from.

use std::fs;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::figures::{Figure, Sample, Spread};
use super::machine::Machine;

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// By which command.
    pub command: String,
    /// Of which code.
    pub commit: String,
    /// When it was last added to.
    pub date: String,
    /// The rows, in the order in which they were first measured.
    pub rows: Vec<Measured>,
}

/// One row's samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the row.
    pub row: String,
    /// Seconds of each sample.
    pub seconds: f64,
    /// Who carried it.
    pub entrants: Vec<Samples>,
}

/// One entrant's samples.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Samples {
    /// Its name.
    pub name: String,
    /// Its runs, in their order.
    pub samples: Vec<Sample>,
    /// Runs that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// Reads a report, of this kind or another.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let report = fs::read(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    report.map_err(|error| io::Error::other(format!("cannot read the report {}: {error}", path.display())))
}

/// Writes one so that a crash leaves the old file or the new one.
pub fn write<T: Serialize>(report: &T, path: &Path) -> io::Result<()> {
    let fresh = path.with_extension("json.new");
    let written =
        fs::write(&fresh, serde_json::to_vec_pretty(report)?).and_then(|()| fs::rename(&fresh, path));
    written.map_err(|error| io::Error::other(format!("cannot write the report {}: {error}", path.display())))
}

impl Report {
    /// A row's samples.
    pub fn row(&self, row: &str) -> Option<&Measured> {
        self.rows.iter().find(|measured| measured.row == row)
    }

    /// Where an entrant's samples of a row go.
    pub fn place(&mut self, row: &str, seconds: f64, entrant: &str) -> &mut Samples {
        let at = self.rows.iter().position(|measured| measured.row == row).unwrap_or_else(|| {
            self.rows.push(Measured { row: row.to_owned(), seconds, entrants: Vec::new() });
            self.rows.len() - 1
        });
        let measured = &mut self.rows[at];
        measured.seconds = seconds;
        let at = measured.entrants.iter().position(|found| found.name == entrant).unwrap_or_else(|| {
            measured.entrants.push(Samples { name: entrant.to_owned(), ..Samples::default() });
            measured.entrants.len() - 1
        });
        &mut measured.entrants[at]
    }
}

impl Measured {
    /// One figure of one entrant.
    pub fn spread(&self, entrant: &str, figure: Figure) -> Option<Spread> {
        Spread::of(&self.entrants.iter().find(|found| found.name == entrant)?.samples, figure)
    }

    /// One figure of an entrant, divided by the best of the others that has it: the median of what each round
    /// gives, because a machine that becomes faster or slower from one round to the next does so for all that
    /// are measured in it.
    pub fn ratio(&self, of: &str, to: &[&str], figure: Figure) -> Option<f64> {
        let is_better =
            |value: f64, best: f64| if figure.is_more_better() { value > best } else { value < best };
        let mut best: Option<(&str, f64)> = None;
        for name in to {
            if let Some(Spread { median, .. }) = self.spread(name, figure)
                && best.is_none_or(|(_, best)| is_better(median, best))
            {
                best = Some((*name, median));
            }
        }
        let (other, median) = best?;
        match self.ratios(of, other, figure) {
            Some(ratios) => Spread::among(ratios).map(|spread| spread.median),
            None => Some(self.spread(of, figure)?.median / median),
        }
    }

    /// The ratio of each round; none if a sample is missing, so that nobody knows which belong together.
    fn ratios(&self, of: &str, to: &str, figure: Figure) -> Option<Vec<f64>> {
        let figures = |name: &str| -> Option<Vec<f64>> {
            let found = self.entrants.iter().find(|found| found.name == name && found.errors.is_empty())?;
            found.samples.iter().map(|sample| sample.get(figure.key()).copied()).collect()
        };
        let (ours, theirs) = (figures(of)?, figures(to)?);
        let is_whole = ours.len() == theirs.len();
        is_whole.then(|| ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_to_the_best_of_the_others() {
        let mut report = Report::default();
        for (name, iops, mean_us) in
            [("isolane", 900.0, 9.0), ("spdk", 500.0, 20.0), ("spdk-uring", 600.0, 18.0)]
        {
            let sample = [("iops".to_owned(), iops), ("mean_us".to_owned(), mean_us)].into();
            report.place("r4k-qd1", 1.0, name).samples.push(sample);
        }
        let measured = report.row("r4k-qd1").unwrap();
        let ratio = |figure| measured.ratio("isolane", &["spdk", "spdk-uring", "absent"], figure);
        assert_eq!((ratio(Figure::Rate), ratio(Figure::Mean)), (Some(1.5), Some(0.5)));
        assert_eq!(measured.ratio("isolane", &["absent"], Figure::Rate), None);
    }

    #[test]
    fn a_ratio_is_the_middle_one_of_all_rounds() {
        let mut report = Report::default();
        for (name, rates) in [("isolane", [90.0, 45.0, 44.0]), ("floor", [100.0, 100.0, 50.0])] {
            let samples = rates.map(|rate| [("iops".to_owned(), rate)].into());
            report.place("r4k-qd8", 1.0, name).samples.extend(samples);
        }
        let ratio = |report: &Report| report.rows[0].ratio("isolane", &["floor"], Figure::Rate);
        assert_eq!(ratio(&report), Some(0.88));
        report.place("r4k-qd8", 1.0, "floor").errors.push("no luck".into());
        assert_eq!(ratio(&report), Some(0.45));
    }

    #[test]
    fn a_report_that_was_written_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let mut report = Report::default();
        report.place("r4k-qd8", 2.0, "floor").errors.push("no luck".into());
        write(&report, &path).unwrap();
        let read: Report = read(&path).unwrap();
        assert_eq!(read.row("r4k-qd8").unwrap().entrants[0].errors, ["no luck"]);
    }
}
