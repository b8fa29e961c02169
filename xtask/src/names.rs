//! The public names of the crate `quell`, read from its sources and compared with a checked-in list.
//!
//! Invariant: a public name comes or goes only together with a line of `crates/quell/api.txt`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use syn::{Attribute, Item, UseTree, Visibility};

/// The sources, below the workspace's root.
const SOURCES: &str = "crates/quell/src";
/// The list, below the workspace's root.
const LIST: &str = "crates/quell/api.txt";
/// The most names that the root may have.
const MOST_AT_ROOT: usize = 60;

/// Adds what differs between the sources and the list, and a root that is too large.
pub(crate) fn check(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let names = names(root)?;
    let text = std::fs::read_to_string(root.join(LIST)).with_context(|| LIST.to_owned())?;
    let listed: BTreeSet<String> = text.lines().map(ToOwned::to_owned).collect();
    wrong.extend(differences(&names, &listed));
    let at_root = names.iter().filter(|name| name.matches("::").count() == 1).count();
    if at_root > MOST_AT_ROOT {
        wrong.push(format!(
            "the crate quell has {at_root} names at its root, at most {MOST_AT_ROOT}: move some to \
             the modules of their subjects"
        ));
    }
    Ok(())
}

/// Writes the list.
pub(crate) fn write(root: &Path) -> anyhow::Result<()> {
    let lines: String = names(root)?.into_iter().map(|name| name + "\n").collect();
    std::fs::write(root.join(LIST), lines).with_context(|| LIST.to_owned())
}

fn differences(names: &BTreeSet<String>, listed: &BTreeSet<String>) -> Vec<String> {
    let new = names.difference(listed).map(|name| format!("{name} is public and not listed"));
    let gone = listed.difference(names).map(|name| format!("{name} is listed and not public"));
    let remedy = |line| format!("{LIST}: {line}: if that is meant, run `cargo xtask names`");
    new.chain(gone).map(remedy).collect()
}

/// Every public name, as `quell::job::Attempt`.
fn names(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let sources = root.join(SOURCES);
    read(&sources.join("lib.rs"), &sources, "quell", &mut names)?;
    Ok(names)
}

/// Reads the names of a module from its file; modules inside it have their files in `folder`.
fn read(
    file: &Path,
    folder: &Path,
    module: &str,
    names: &mut BTreeSet<String>,
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
    for item in &parsed.items {
        match public(item) {
            Some(Named::One(name)) => {
                names.insert(format!("{module}::{name}"));
            }
            Some(Named::Module(name)) => {
                let inner = format!("{module}::{name}");
                names.insert(inner.clone());
                let own = folder.join(format!("{name}.rs"));
                let below = folder.join(&name);
                let file = if own.exists() { own } else { below.join("mod.rs") };
                read(&file, &below, &inner, names)?;
            }
            Some(Named::Uses(tree)) => {
                let mut used = Vec::new();
                if leaves(tree, &mut used).is_none() {
                    bail!("{}: `pub use …::*` exports names that no list has", file.display());
                }
                names.extend(used.into_iter().map(|name| format!("{module}::{name}")));
            }
            None => {}
        }
    }
    Ok(())
}

/// What a public item adds to its module.
enum Named<'i> {
    One(String),
    Module(String),
    Uses(&'i UseTree),
}

fn public(item: &Item) -> Option<Named<'_>> {
    let (attributes, visibility, named): (&[Attribute], _, _) = match item {
        Item::Const(one) => (&one.attrs, &one.vis, Named::One(one.ident.to_string())),
        Item::Enum(one) => (&one.attrs, &one.vis, Named::One(one.ident.to_string())),
        Item::Fn(one) => (&one.attrs, &one.vis, Named::One(one.sig.ident.to_string())),
        Item::Static(one) => (&one.attrs, &one.vis, Named::One(one.ident.to_string())),
        Item::Struct(one) => (&one.attrs, &one.vis, Named::One(one.ident.to_string())),
        Item::Trait(one) => (&one.attrs, &one.vis, Named::One(one.ident.to_string())),
        Item::Type(one) => (&one.attrs, &one.vis, Named::One(one.ident.to_string())),
        Item::Mod(one) if one.content.is_none() => {
            (&one.attrs, &one.vis, Named::Module(one.ident.to_string()))
        }
        Item::Use(one) => (&one.attrs, &one.vis, Named::Uses(&one.tree)),
        _ => return None,
    };
    let tests = |attribute: &Attribute| attribute.path().is_ident("test");
    let is_public = matches!(visibility, Visibility::Public(_)) && !attributes.iter().any(tests);
    is_public.then_some(named)
}

/// The names that a `use` brings; none for one with a glob.
fn leaves(tree: &UseTree, names: &mut Vec<String>) -> Option<()> {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, names),
        UseTree::Name(name) => {
            names.push(name.ident.to_string());
            Some(())
        }
        UseTree::Rename(rename) => {
            names.push(rename.rename.to_string());
            Some(())
        }
        UseTree::Group(group) => group.items.iter().try_for_each(|tree| leaves(tree, names)),
        UseTree::Glob(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lib: &str, job: &str) -> anyhow::Result<BTreeSet<String>> {
        let folder = tempfile::tempdir()?;
        let sources = folder.path().join(SOURCES);
        std::fs::create_dir_all(&sources)?;
        std::fs::write(sources.join("lib.rs"), lib)?;
        std::fs::write(sources.join("job.rs"), job)?;
        names(folder.path())
    }

    #[test]
    fn public_names_are_found_in_files_and_uses() {
        let lib = "pub mod job; mod inner; pub use a::{B, c::D as E}; pub fn f() {} fn g() {} \
                   pub(crate) struct H; pub const I: u8 = 1;";
        let found = of(lib, "pub use x::Attempt; pub struct Row;").unwrap();
        let expected = ["B", "E", "I", "f", "job", "job::Attempt", "job::Row"];
        assert_eq!(found, expected.map(|name| format!("quell::{name}")).into());
    }

    #[test]
    fn a_glob_is_refused() {
        let error = of("pub use core::*;", "").unwrap_err().to_string();
        assert!(error.contains("exports names that no list has"), "{error}");
    }

    #[test]
    fn a_name_that_comes_or_goes_is_named() {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let found = differences(&set(&["quell::A", "quell::B"]), &set(&["quell::B", "quell::C"]));
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("quell::A is public and not listed"), "{found:?}");
        assert!(found[1].contains("quell::C is listed and not public"), "{found:?}");
    }
}
