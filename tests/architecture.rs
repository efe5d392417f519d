//! The house: modules import only those that stand before them.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use tests::process::workspace;

/// `pub mod name;` in the order of a crate's root.
fn order(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("lib.rs")).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    names.map(str::to_owned).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let all = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    all.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

/// The modules of its own crate that a file names.
fn named(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => names.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()),
            Some(group) => names.extend(first_names(group)),
        }
    }
    names
}

/// The first path segments of `{a::b, c::{d, e}, f}`, behind the opening brace.
fn first_names(group: &str) -> Vec<String> {
    let (mut depth, mut word, mut names) = (0, String::new(), Vec::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(std::mem::take(&mut word)),
            c if depth == 0 && !c.is_whitespace() => word.push(c),
            _ => {}
        }
    }
    names.push(word);
    let firsts = names.iter().map(|name| name.split("::").next().unwrap_or_default().to_owned());
    firsts.filter(|name| !name.is_empty()).collect()
}

fn violations(member: &str) -> Vec<String> {
    let root = workspace().join(member).join("src");
    let order = order(&root);
    let rank: HashMap<_, _> = order.iter().enumerate().map(|(rank, name)| (name.as_str(), rank)).collect();
    assert!(rank.len() > 4, "{member}/src/lib.rs lists its modules");
    let mut found = Vec::new();
    for file in files(&root) {
        let path = file.strip_prefix(&root).unwrap();
        let module = path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let Some(own) = rank.get(module.as_str()) else { continue };
        for name in named(&fs::read_to_string(&file).unwrap()) {
            match rank.get(name.as_str()) {
                Some(other) if other > own => {
                    found.push(format!("{member}: {} names {name}", path.display()))
                }
                Some(_) => {}
                None => found
                    .push(format!("{member}: {} names {name}, which lib.rs does not list", path.display())),
            }
        }
    }
    found
}

#[test]
fn imports_go_down_only() {
    let found: Vec<_> =
        ["tunnelto_lib", "tunnelto_server", "tunnelto_client"].into_iter().flat_map(violations).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_check_sees_what_it_should() {
    let text =
        "use crate::{\n    io::{a, b},\n    sign::C,\n    limits,\n};\nfn f() { crate::server::run() }";
    assert_eq!(named(text), ["io", "sign", "limits", "server"]);
}

#[test]
fn main_is_a_table_of_contents() {
    for member in ["tunnelto_server", "tunnelto_client"] {
        let text = fs::read_to_string(workspace().join(member).join("src/main.rs")).unwrap();
        assert!(text.lines().count() < 40, "{member}/src/main.rs");
    }
}

#[test]
fn the_settings_page_is_the_table_in_the_code() {
    let page = fs::read_to_string(workspace().join("docs/configuration.md")).unwrap_or_default();
    let output = std::process::Command::new(tests::process::binary("tunnelto_server"))
        .arg("settings-reference")
        .output()
        .unwrap();
    let made = String::from_utf8(output.stdout).unwrap();
    assert_eq!(page, made, "run: tunnelto_server settings-reference > docs/configuration.md");
}
