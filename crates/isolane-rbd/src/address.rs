//! Address of an image: `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, and how its cluster is reached.

use isolane_volume::OpenError;
use isolane_volume::spec::{Source, VolumeSpec};

/// Address of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Name of the volume.
    pub name: String,
    pub login: Login,
    pub pool: String,
    /// Empty for the default namespace.
    pub namespace: String,
    pub image: String,
    pub snapshot: Option<String>,
}

/// How a cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    /// Configuration file. `None`: Ceph's default places.
    pub conf: Option<String>,
    /// Name of the user, without `client.`.
    pub id: String,
    pub keyring: Option<String>,
}

impl Address {
    /// Whether both are the same image of the same cluster, as far as their texts tell.
    pub fn is_same_image(&self, other: &Address) -> bool {
        let image = |address: &Address| {
            let Address { login, pool, namespace, image, .. } = address;
            [pool, namespace, image]
                .map(String::clone)
                .into_iter()
                .chain(login.conf.clone())
                .collect::<Vec<_>>()
        };
        image(self) == image(other)
    }

    /// Reads the address of a specification.
    pub fn new(spec: &VolumeSpec) -> Result<Address, OpenError> {
        let name = spec.name();
        let (text, options) = match &spec.source {
            Source::Nested { text, options, .. } => (text.as_str(), options.as_slice()),
            _ => ("", &[][..]),
        };
        if let Some((key, _)) = options.iter().find(|(_, value)| value.is_empty()) {
            let remedy = format!("give it a value, or omit {key}=");
            return Err(OpenError::invalid(&name, format!("option {key} is empty"), remedy));
        }
        let option = |name: &str| options.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let login = Login {
            conf: option("conf"),
            id: option("id").unwrap_or_else(|| DEFAULT_USER.to_owned()),
            keyring: option("keyring"),
        };
        let (separators, names) = split(text);
        let fail = |reason| Err(OpenError::invalid(&name, reason, SYNTAX));
        if names.iter().any(String::is_empty) {
            return fail("a name is empty");
        }
        let mut names = names.into_iter();
        let mut next = || names.next().unwrap_or_default();
        let (pool, namespace, image, snapshot) = match separators.as_str() {
            "/" => (next(), String::new(), next(), None),
            "/@" => (next(), String::new(), next(), Some(next())),
            "//" => (next(), next(), next(), None),
            "//@" => (next(), next(), next(), Some(next())),
            "" | "@" => return fail("no image"),
            _ => return fail("too many names"),
        };
        Ok(Address { name, login, pool, namespace, image, snapshot })
    }
}

/// Splits at single slashes and `@`; double ones stand for themselves. Returns the separators and the names.
fn split(text: &str) -> (String, Vec<String>) {
    let (mut separators, mut names) = (String::new(), vec![String::new()]);
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if ['/', '@'].contains(&char) && chars.next_if_eq(&char).is_none() {
            separators.push(char);
            names.push(String::new());
        } else if let Some(name) = names.last_mut() {
            name.push(char);
        }
    }
    (separators, names)
}

/// User of a specification without one, as in Ceph's tools.
const DEFAULT_USER: &str = "admin";
const SYNTAX: &str = "use rbd:POOL/IMAGE, rbd:POOL/NAMESPACE/IMAGE, or either with @SNAPSHOT; write a comma, slash, or @ \
                      of a name twice";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, String> {
        let spec = isolane_volume::spec::parse_with(text, &["rbd"]).map_err(|error| error.to_string())?;
        Address::new(&spec).map_err(|error| error.to_string())
    }

    #[test]
    fn parses_names() {
        let names = |text: &str| {
            let Address { pool, namespace, image, snapshot, .. } = parse(text).unwrap();
            (pool, namespace, image, snapshot)
        };
        let owned = |pool: &str, namespace: &str, image: &str, snapshot: Option<&str>| {
            (pool.to_owned(), namespace.to_owned(), image.to_owned(), snapshot.map(str::to_owned))
        };
        assert_eq!(names("rbd:p/i"), owned("p", "", "i", None));
        assert_eq!(names("rbd:p/i@s"), owned("p", "", "i", Some("s")));
        assert_eq!(names("rbd:p/n/i"), owned("p", "n", "i", None));
        assert_eq!(names("rbd:p/n/i@s"), owned("p", "n", "i", Some("s")));
        assert_eq!(names("rbd:a//b,,c/d@@e@f//g"), owned("a/b,c", "", "d@e", Some("f/g")));
    }

    #[test]
    fn parses_login() {
        let login = parse("rbd:p/i,conf=/etc/c,,1.conf,id=gateway,keyring=/etc/k").unwrap().login;
        let expected = Login {
            conf: Some("/etc/c,1.conf".to_owned()),
            id: "gateway".to_owned(),
            keyring: Some("/etc/k".to_owned()),
        };
        assert_eq!(login, expected);
        assert_eq!(
            parse("rbd:p/i").unwrap().login,
            Login { conf: None, id: "admin".to_owned(), keyring: None }
        );
    }

    #[test]
    fn rejects_invalid_addresses() {
        for (text, reason) in [
            ("rbd:", "a name is empty; use rbd:POOL/IMAGE"),
            ("rbd:pool", "no image"),
            ("rbd:pool@snapshot", "no image"),
            ("rbd:pool/", "a name is empty"),
            ("rbd:pool/image@", "a name is empty"),
            ("rbd:a/b/c/d", "too many names"),
            ("rbd:a/b@c@d", "too many names"),
            ("rbd:a/b@c/d", "too many names"),
            ("rbd:a/b,conf=", "option conf is empty; give it a value, or omit conf="),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
