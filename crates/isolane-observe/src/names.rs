//! Characters of names from outside, which can be hosts, volumes, or processes of others.

/// Returns a name of at most `max` characters, in which unprintable ones are escaped.
pub fn escape(name: &str, max: usize) -> String {
    let mut escaped = String::new();
    for (at, letter) in name.chars().enumerate() {
        if at == max {
            escaped.push('…');
            break;
        }
        if is_unprintable(letter) { escaped.extend(letter.escape_unicode()) } else { escaped.push(letter) }
    }
    escaped
}

/// Returns `true` for control characters, and for characters that do not show or that change the direction of text. They
/// must be escaped before a name is shown.
pub fn is_unprintable(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{ffff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}
