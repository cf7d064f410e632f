//! Options with a fixed list of values.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Name and description of a value on the command line, and the value.
pub type Choice<T> = (&'static str, &'static str, T);

/// Parses one of these names.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let names = choices.iter().map(|(name, help, _)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(names).try_map(|name| value_of(choices, &name).ok_or("unknown"))
}

/// Returns the value with this name.
pub fn value_of<T: Clone>(choices: &[Choice<T>], name: &str) -> Option<T> {
    choices.iter().find(|choice| choice.0 == name).map(|choice| choice.2.clone())
}

/// Returns the name of a value.
pub fn name_of<T: PartialEq>(choices: &[Choice<T>], value: &T) -> &'static str {
    choices.iter().find(|choice| choice.2 == *value).map_or("", |choice| choice.0)
}
