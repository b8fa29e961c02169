//! Sources with listed words in comments, strings and names.

use super::*;

fn lines(language: Language, text: &str) -> Vec<usize> {
    let glossary = Glossary::parse("told | sent\nunder way | in flight\n").unwrap();
    hits(&glossary, language, text).into_iter().map(|hit| hit.line).collect()
}

#[test]
fn comments_and_strings_of_rust_are_read() {
    let table: [(&str, &[usize]); 16] = [
        ("// told\n", &[1]),
        ("fn a() {\n    /// is told\n    //! told\n}\n", &[2, 3]),
        ("/* a\n /* told */\n told */ let told = 1;\n", &[2, 3]),
        ("// a call that is under\n// way\n", &[1]),
        ("let a = \"is told\";\n", &[1]),
        ("let a = \"one \\\"\n told\\n\";\n", &[2]),
        ("let a = \"told\\ntold\";\n", &[1, 1]),
        ("let a = r#\"a \" told\"#; let told = 2;\n", &[1]),
        ("let a = br\"told\";\n", &[1]),
        ("let a = '\"'; let told = 1; let b = '\"';\n", &[]),
        ("let a = '\\''; let told = 1; // told\n", &[1]),
        ("fn a<'told>(told: &'told str) { told() }\n", &[]),
        ("let tolder = told_at; // told_at `told`\n", &[]),
        ("/// ```\n/// let told = 1;\n/// ```\n/// told\n", &[4]),
        ("let a = b'\"'; // told\n", &[1]),
        ("let a = \"//\"; let told = 1;\n", &[]),
    ];
    for (text, expected) in table {
        assert_eq!(lines(Language::Rust, text), expected, "{text}");
    }
}

#[test]
fn comments_and_strings_of_sql_are_read() {
    let table: [(&str, &[usize]); 5] = [
        ("-- told\nselect told from job;\n", &[1]),
        ("select 'it''s told' as told;\n", &[1]),
        ("/* told */ select '-- no comment', told;\n", &[1]),
        ("as $$\nbegin\n  -- told\n  told := 1;\nend $$;\n", &[3]),
        ("select '\\'; -- told\n", &[1]),
    ];
    for (text, expected) in table {
        assert_eq!(lines(Language::Sql, text), expected, "{text}");
    }
}

#[test]
fn comments_and_strings_of_lua_are_read() {
    let table: [(&str, &[usize]); 5] = [
        ("-- told\nlocal told = 1\n", &[1]),
        ("--[[ a\ntold ]] local told\n", &[2]),
        ("error('told \\' told')\n", &[1, 1]),
        ("redis.call(\"TOLD\", told)\n", &[1]),
        ("local a = [[told]] .. told\n", &[1]),
    ];
    for (text, expected) in table {
        assert_eq!(lines(Language::Lua, text), expected, "{text}");
    }
}

#[test]
fn other_files_have_no_language() {
    let table = [
        ("a.rs", Some(Language::Rust)),
        ("a/b.sql", Some(Language::Sql)),
        ("c.lua", Some(Language::Lua)),
        ("d.toml", None),
        ("e", None),
    ];
    for (file, language) in table {
        assert_eq!(Language::of(Path::new(file)), language, "{file}");
    }
}
