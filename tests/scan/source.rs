//! Reads the workspace's own sources: which files there are, which functions they hold, which are
//! tests.
//!
//! A scanner, not a parser: it knows comments, strings and braces, which is all that the checks
//! need.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the workspace.
pub struct SourceFile {
    /// Path from the workspace root, with `/`.
    pub path: String,
    /// The text as it is.
    pub text: String,
}

/// A function found in a file.
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of its `fn`, from 1.
    pub line: usize,
    /// Lines from its `fn` to its closing brace; 1 for a declaration.
    pub lines: usize,
    /// Whether `#[test]` stands above it and `#[ignore]` does not.
    pub runs_as_test: bool,
}

/// The workspace root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All text files below the root whose name ends in one of `endings`, in order of their paths.
pub fn files(endings: &[&str]) -> Vec<SourceFile> {
    let mut found = vec![];
    collect(root(), endings, &mut found);
    found.sort();
    found
        .into_iter()
        .filter_map(|p| {
            let text = fs::read_to_string(&p).ok()?;
            let parts = p.strip_prefix(root()).ok()?.iter();
            let parts: Vec<_> = parts.map(|c| c.to_string_lossy()).collect();
            Some(SourceFile { path: parts.join("/"), text })
        })
        .collect()
}

fn collect(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // Links are not followed, so that a loop of them cannot trap the walk.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                collect(&path, endings, found);
            }
        } else if kind.is_file() && endings.iter().any(|e| name.ends_with(e)) {
            found.push(path);
        }
    }
}

const SKIPPED_FOLDERS: [&str; 4] = [".git", "target", "wip", "node_modules"];

/// The functions of a Rust file, in order.
pub fn functions(text: &str) -> Vec<Function> {
    let code = code_only(text);
    let mut out = vec![];
    let (mut is_test, mut is_ignored) = (false, false);
    let (mut open_brackets, mut offset) = (0, 0);
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while open_brackets > 0 || rest.starts_with("#[") {
            is_test |= rest.starts_with("#[test]");
            is_ignored |= rest.starts_with("#[ignore");
            (open_brackets, rest) = skip_attribute(open_brackets, rest);
            if rest.is_empty() {
                break;
            }
        }
        if let Some((name, at)) = function_name(line) {
            let lines = body_lines(&code[offset + at..]);
            let runs_as_test = is_test && !is_ignored;
            out.push(Function { name, line: index + 1, lines, runs_as_test });
        }
        if !rest.is_empty() {
            (is_test, is_ignored) = (false, false);
        }
        offset += line.len() + 1;
    }
    out
}

/// What follows an attribute on its line, and how many of its brackets are still open at the end of
/// the line.
fn skip_attribute(mut open: usize, text: &str) -> (usize, &str) {
    for (at, c) in text.char_indices() {
        match c {
            '[' => open += 1,
            ']' => open = open.saturating_sub(1),
            _ => continue,
        }
        if open == 0 {
            return (0, text[at + 1..].trim_start());
        }
    }
    (open, "")
}

/// The name after the first `fn` word of a line, and where that word starts.
fn function_name(line: &str) -> Option<(String, usize)> {
    let at = words(line).find(|(_, w)| *w == "fn").map(|(at, _)| at)?;
    let after = line[at + 2..].trim_start();
    let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some((name, at))
}

/// Lines up to the brace that closes the first one, or 1 if a `;` outside brackets comes first.
fn body_lines(code: &str) -> usize {
    let (mut braces, mut brackets, mut lines) = (0_usize, 0_usize, 1);
    for c in code.chars() {
        match c {
            '\n' => lines += 1,
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            '{' => braces += 1,
            '}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    return lines;
                }
            }
            ';' if braces == 0 && brackets == 0 => return 1,
            _ => {}
        }
    }
    lines
}

/// The identifiers and keywords of a text, with their positions.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(move |c| !is_word(c)).filter(|w| !w.is_empty()).map(|w| {
        let at = w.as_ptr() as usize - text.as_ptr() as usize;
        (at, w)
    })
}

/// The text with everything in comments, strings and character literals replaced by blanks; lines
/// stay lines.
pub fn code_only(text: &str) -> String {
    let b = text.as_bytes();
    let mut out = b.to_vec();
    let mut i = 0;
    while i < b.len() {
        let end = match b[i] {
            b'/' if b.get(i + 1) == Some(&b'/') => find(b, i, b"\n"),
            b'/' if b.get(i + 1) == Some(&b'*') => end_of_block_comment(b, i),
            b'"' => end_of_string(b, i),
            b'r' if i == 0 || !is_word_byte(b[i - 1]) || b[i - 1] == b'b' || b[i - 1] == b'c' => {
                end_of_raw_string(b, i).unwrap_or(i)
            }
            b'\'' => end_of_char(b, i).unwrap_or(i),
            _ => i,
        };
        if end == i {
            i += 1;
            continue;
        }
        out[i..end].iter_mut().filter(|c| **c != b'\n').for_each(|c| *c = b' ');
        i = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

fn find(b: &[u8], from: usize, what: &[u8]) -> usize {
    b[from..].windows(what.len()).position(|w| w == what).map_or(b.len(), |p| from + p)
}

fn end_of_block_comment(b: &[u8], start: usize) -> usize {
    let (mut depth, mut i) = (0_usize, start);
    while i < b.len() {
        match &b[i..(i + 2).min(b.len())] {
            b"/*" => (depth, i) = (depth + 1, i + 2),
            b"*/" => (depth, i) = (depth.saturating_sub(1), i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    b.len()
}

fn end_of_string(b: &[u8], start: usize) -> usize {
    let mut i = start + 1;
    while i < b.len() {
        match b[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    b.len()
}

/// The end of `r"…"` or `r#"…"#`, if one starts here.
fn end_of_raw_string(b: &[u8], start: usize) -> Option<usize> {
    let hashes = b[start + 1..].iter().take_while(|c| **c == b'#').count();
    let open = start + 1 + hashes;
    if b.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    Some((find(b, open + 1, &close) + close.len()).min(b.len()))
}

/// The end of a character literal, if this quote is not a lifetime's.
fn end_of_char(b: &[u8], start: usize) -> Option<usize> {
    if b.get(start + 1) == Some(&b'\\') {
        return Some((find(b, start + 3, b"'") + 1).min(b.len()));
    }
    let text = std::str::from_utf8(&b[start + 1..]).ok()?;
    let len = text.chars().next()?.len_utf8();
    (b.get(start + 1 + len) == Some(&b'\'')).then_some(start + len + 2)
}
