//! Text of a specification: the inverse of parsing.

use super::{BLOCK_SIZES, Source, VolumeSpec, format_size};

impl VolumeSpec {
    /// Returns the text from which [`parse_with`](super::parse_with) makes this specification.
    pub fn to_text(&self) -> String {
        let Source::Nested { kind, text, options } = &self.source else {
            let fields = self.options().map(|option| format!(",{}", option.replace(',', ",,")));
            return self.name().replace(',', ",,") + &fields.collect::<String>();
        };
        let options = options.iter().map(|(key, value)| format!("{key}={value}"));
        let fields = self.options().chain(options).map(|option| format!(",{}", double_commas(&option)));
        double_commas(&format!("{kind}:{text}")) + &fields.collect::<String>()
    }

    /// Returns the options that all kinds can have, unless they have their default.
    fn options(&self) -> impl Iterator<Item = String> {
        let size = match &self.source {
            Source::Path { size, .. } => size.map(|bytes| format!("size={}", format_size(bytes))),
            Source::Memory { .. } | Source::Null { .. } | Source::Nested { .. } => None,
        };
        let block_size =
            (self.block_size != BLOCK_SIZES[0]).then(|| format!("block-size={}", self.block_size));
        let word = |is_set: bool, word: &str| is_set.then(|| word.to_owned());
        [
            size,
            block_size,
            word(self.read_only, "ro"),
            word(self.write_through, "write-through"),
            word(self.buffered, "buffered"),
            self.nsid.map(|nsid| format!("nsid={nsid}")),
            self.uuid.map(|uuid| format!("uuid={uuid}")),
            self.group.as_ref().map(|group| format!("group={group}")),
        ]
        .into_iter()
        .flatten()
    }
}

/// Doubles the commas that no parentheses protect.
fn double_commas(text: &str) -> String {
    let (mut doubled, mut depth) = (String::with_capacity(text.len()), 0_usize);
    for char in text.chars() {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => doubled.push(','),
            _ => {}
        }
        doubled.push(char);
    }
    doubled
}

#[cfg(test)]
mod tests {
    use super::super::parse_with;

    #[test]
    fn text_is_parsed_as_the_same_specification() {
        for text in [
            "mem:1G",
            "mem:12288,block-size=4096,ro,nsid=7",
            "null:1T,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427,group=a,,b",
            "/srv/a,,b.img,size=10G,write-through,buffered",
            "./a:b",
            "mirror:(/a,ro);(/b,,c),bitmap=/x,,y,ro,group=g",
            "delay:5ms:/a,,b,on=write,from=3s",
            "stripe:64k:(mirror:(/a,ro);/b,bitmap=/m);(mem:1M,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427)",
        ] {
            let parse = |text: &str| parse_with(text, &["mirror", "delay", "stripe"]).unwrap();
            let spec = parse(text);
            assert_eq!(parse(&spec.to_text()), spec, "{text}");
        }
    }
}
