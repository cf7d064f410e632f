//! Place of a key in a file, for errors that appear only when its value is used.

use toml_edit::{Document, Item, TableLike, Value};

use crate::edit::{ObjectId, is, list_of};
use crate::problem::shown;

/// Returns line, from 1, and value of a key of an object, as the file has it; `None` if the file does not.
pub fn locate(text: &str, object: &ObjectId, key: &str) -> Option<(usize, String)> {
    let document = Document::parse(text).ok()?;
    let span = find(document.as_table(), object)?.get(key)?.span()?;
    let line = text.get(..span.start)?.bytes().filter(|byte| *byte == b'\n').count() + 1;
    Some((line, shown(text.get(span)?)))
}

fn find<'a>(root: &'a dyn TableLike, object: &ObjectId) -> Option<&'a dyn TableLike> {
    let parent = match object {
        ObjectId::Server => return root.get("server")?.as_table_like(),
        ObjectId::Namespace(nqn, _) => find(root, &ObjectId::Subsystem(*nqn))?,
        _ => root,
    };
    match parent.get(list_of(object)?)? {
        Item::ArrayOfTables(tables) => {
            tables.iter().find(|table| is(*table, object)).map(|table| table as &dyn TableLike)
        }
        Item::Value(Value::Array(tables)) => {
            let mut tables = tables.iter().filter_map(Value::as_inline_table);
            tables.find(|table| is(*table, object)).map(|table| table as &dyn TableLike)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Name, SubsystemNqn, parse_subsystem_nqn};
    use crate::value::Number;

    const TEXT: &str = "[server]\nmode = \"poll\"\n\n[[port]]\nname = \"left\"\nlisten = \"4420\"\n\n\
        [[port]]\nname = \"right\"\nlisten = \"10.0.0.1:4420\" # the other\n\n\
        [[subsystem]]\nnqn = \"nqn.2014-08.org.example:a\"\nnamespace = [\n  { nsid = 1, volume = \"mem:1M\" },\n\
        \x20 { nsid = 2, volume = \"mem:2M\" },\n]\n";

    #[test]
    fn finds_keys_of_all_objects() {
        let port = |name| ObjectId::Port(Name::new(name).unwrap());
        let nqn = SubsystemNqn(parse_subsystem_nqn("nqn.2014-08.org.example:a").unwrap());
        let namespace = |nsid| ObjectId::Namespace(nqn, Number::new(nsid).unwrap());
        let found = |object, key| locate(TEXT, &object, key);
        assert_eq!(found(ObjectId::Server, "mode"), Some((2, "\"poll\"".into())));
        assert_eq!(found(port("left"), "listen"), Some((6, "\"4420\"".into())));
        assert_eq!(found(port("right"), "listen"), Some((10, "\"10.0.0.1:4420\"".into())));
        assert_eq!(found(namespace(2), "volume"), Some((16, "\"mem:2M\"".into())));
        assert_eq!((found(port("middle"), "listen"), found(port("left"), "name2")), (None, None));
        assert_eq!(locate("not TOML", &port("left"), "listen"), None);
    }
}
