//! Whether a regex means the same to Oniguruma, by which `tokenizers` cuts texts, as it does to `regex-automata`. Of
//! both languages only that part is taken in which it does; what else a regex may hold is refused, by what is
//! supported instead.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{
    Ast, ClassBracketed, ClassPerlKind, ClassSet, ClassSetBinaryOpKind, ClassSetItem, ClassUnicode,
    ClassUnicodeKind, Flag, FlagsItemKind, Group, GroupKind, HexLiteralKind, Literal, LiteralKind,
    Repetition, RepetitionKind, RepetitionRange,
};

/// The last two alternatives of most regexes: white space up to its last character, if something else follows.
const LOOK_AHEAD: &str = r"|\s+(?!\S)|\s+";
/// Categories of Unicode by the names that both know.
const CATEGORIES: [&str; 34] = [
    "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "Han", "Hiragana",
    "Katakana",
];
/// Letters that together are what another character is without its case: Oniguruma takes that for them.
const LIGATURES: [&str; 5] = ["ff", "fi", "fl", "ss", "st"];

/// The alternatives before the look-ahead with which `regex` ends, if it does.
pub(super) fn without_look_ahead(regex: &str) -> Option<&str> {
    regex.strip_suffix(LOOK_AHEAD)
}

/// What is supported instead of something in `regex`, if it is not supported.
pub(super) fn check(regex: &str) -> Result<(), String> {
    let ast = Parser::new().parse(regex);
    let ast =
        ast.map_err(|error| format!("what both Oniguruma and the crate regex read ({})", error.kind()))?;
    check_ast(&ast).map(drop).map_err(str::to_owned)
}

/// Checks `ast` and says whether it can match nothing.
fn check_ast(ast: &Ast) -> Result<bool, &'static str> {
    match ast {
        Ast::Empty(_) => Ok(true),
        Ast::Dot(_) => Ok(false),
        Ast::Literal(literal) => check_literal(literal).map(|()| false),
        Ast::ClassPerl(class) => check_perl(&class.kind).map(|()| false),
        Ast::ClassUnicode(class) => check_category(class).map(|()| false),
        Ast::ClassBracketed(class) => check_set(&class.kind).map(|()| false),
        Ast::Repetition(repetition) => check_repetition(repetition),
        Ast::Group(group) => check_group(group),
        Ast::Alternation(alternation) => {
            alternation.asts.iter().try_fold(false, |empty, ast| Ok(check_ast(ast)? || empty))
        }
        Ast::Concat(concat) => concat.asts.iter().try_fold(true, |empty, ast| Ok(check_ast(ast)? && empty)),
        Ast::Flags(_) => Err("`i` alone of all flags, and only for a group"),
        Ast::Assertion(_) => Err(r"no assertion but `|\s+(?!\S)|\s+` at the end, or `\s+$` alone"),
    }
}

fn check_literal(literal: &Literal) -> Result<(), &'static str> {
    match literal.kind {
        LiteralKind::Verbatim | LiteralKind::Meta | LiteralKind::Superfluous | LiteralKind::Special(_) => {
            Ok(())
        }
        LiteralKind::HexFixed(HexLiteralKind::X) if literal.c.is_ascii() => Ok(()),
        LiteralKind::HexFixed(HexLiteralKind::UnicodeShort) | LiteralKind::HexBrace(HexLiteralKind::X) => {
            Ok(())
        }
        _ => Err(r"characters as themselves, escaped, or as `\x41`, `\u00e9` or `\x{1f642}`"),
    }
}

fn check_perl(kind: &ClassPerlKind) -> Result<(), &'static str> {
    match kind {
        ClassPerlKind::Digit | ClassPerlKind::Space => Ok(()),
        ClassPerlKind::Word => Err(r"`\d`, `\s`, `\D` and `\S` alone of such classes"),
    }
}

fn check_category(class: &ClassUnicode) -> Result<(), &'static str> {
    let is_known = match &class.kind {
        ClassUnicodeKind::OneLetter(_) => false, // Oniguruma wants braces
        ClassUnicodeKind::Named(name) => CATEGORIES.contains(&name.as_str()),
        ClassUnicodeKind::NamedValue { .. } => false,
    };
    if is_known { Ok(()) } else { Err(r"general categories of Unicode by their short names, as in `\p{Lu}`") }
}

fn check_set(set: &ClassSet) -> Result<(), &'static str> {
    match set {
        ClassSet::Item(item) => check_item(item),
        ClassSet::BinaryOp(operation) if operation.kind == ClassSetBinaryOpKind::Intersection => {
            check_set(&operation.lhs)?;
            check_set(&operation.rhs)
        }
        ClassSet::BinaryOp(_) => Err("`&&` alone of all operations on classes"),
    }
}

fn check_item(item: &ClassSetItem) -> Result<(), &'static str> {
    match item {
        ClassSetItem::Empty(_) => Err("classes that are not empty"),
        ClassSetItem::Literal(literal) => check_in_class(literal),
        ClassSetItem::Range(range) => {
            check_in_class(&range.start)?;
            check_in_class(&range.end)
        }
        ClassSetItem::Ascii(_) => Err("classes without names in colons"),
        ClassSetItem::Unicode(class) => check_category(class),
        ClassSetItem::Perl(class) => check_perl(&class.kind),
        ClassSetItem::Bracketed(class) => check_set(&class.kind),
        ClassSetItem::Union(union) => union.items.iter().try_for_each(check_item),
    }
}

fn check_in_class(literal: &Literal) -> Result<(), &'static str> {
    match (&literal.kind, literal.c) {
        (LiteralKind::Verbatim, ']') => Err("a `]` of a class with `\\` before it"),
        _ => check_literal(literal),
    }
}

fn check_repetition(repetition: &Repetition) -> Result<bool, &'static str> {
    if !repetition.greedy || matches!(*repetition.ast, Ast::Repetition(_)) {
        return Err("greedy repetitions alone, none of them possessive");
    }
    if check_ast(&repetition.ast)? {
        return Err("repetitions of what cannot be empty");
    }
    let least = match repetition.op.kind {
        RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore => 0,
        RepetitionKind::OneOrMore => 1,
        RepetitionKind::Range(
            RepetitionRange::Exactly(least)
            | RepetitionRange::AtLeast(least)
            | RepetitionRange::Bounded(least, _),
        ) => least,
    };
    Ok(least == 0)
}

fn check_group(group: &Group) -> Result<bool, &'static str> {
    match &group.kind {
        GroupKind::CaptureIndex(_) => check_ast(&group.ast),
        GroupKind::CaptureName { .. } => Err("groups without names"),
        GroupKind::NonCapturing(flags) => match flags.items[..] {
            [] => check_ast(&group.ast),
            [ref item] if item.kind == FlagsItemKind::Flag(Flag::CaseInsensitive) => {
                check_caseless(&group.ast).map(|()| false)
            }
            _ => Err("`i` alone of all flags, and only for a group"),
        },
    }
}

/// What has no case: alternatives of ASCII characters, one after the other.
fn check_caseless(ast: &Ast) -> Result<(), &'static str> {
    const SUPPORTED: &str =
        "words of ASCII without ff, fi, fl, ss and st, and classes of its letters, where case is ignored";
    match ast {
        Ast::Alternation(alternation) => alternation.asts.iter().try_for_each(check_caseless),
        Ast::ClassBracketed(class) => {
            if is_of_letters(class) {
                Ok(())
            } else {
                Err(SUPPORTED)
            }
        }
        Ast::Literal(literal) if literal.c.is_ascii() => check_literal(literal),
        Ast::Concat(concat) => {
            let chars = concat.asts.iter().map(|ast| match ast {
                Ast::Literal(literal) if literal.c.is_ascii() => Some(literal.c.to_ascii_lowercase()),
                _ => None,
            });
            let word: Option<String> = chars.collect();
            let is_plain = |word: String| !LIGATURES.iter().any(|pair| word.contains(pair));
            if word.is_some_and(is_plain) { Ok(()) } else { Err(SUPPORTED) }
        }
        _ => Err(SUPPORTED),
    }
}

/// Whether `class` lists letters of ASCII.
fn is_of_letters(class: &ClassBracketed) -> bool {
    let is_letter = |item: &ClassSetItem| match item {
        ClassSetItem::Literal(literal) => literal.c.is_ascii_alphabetic(),
        _ => false,
    };
    let ClassSet::Item(item) = &class.kind else { return false };
    let is_listed = match item {
        ClassSetItem::Union(union) => union.items.iter().all(is_letter),
        item => is_letter(item),
    };
    !class.negated && is_listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::stage;

    #[test]
    fn the_regexes_of_known_models_are_supported() {
        let known = [
            stage::GPT2,
            stage::LLAMA3,
            stage::QWEN2,
            stage::QWEN35,
            stage::TEKKEN,
            stage::NEWLINE,
            stage::DEEPSEEK_LETTERS,
            stage::DEEPSEEK_MARKS,
            stage::DEEPSEEK_CJK,
        ];
        for regex in known {
            check(without_look_ahead(regex).unwrap_or(regex)).unwrap();
        }
        for regex in
            [r"[\p{Han}&&[^一-龥]]+", r"'(?i:[sdmt]|ll|ve|re)?", r"(a|)b{2,3}", r"\x41\u00e9\x{1f642}\-\t."]
        {
            check(regex).unwrap();
        }
    }

    #[test]
    fn what_the_two_read_otherwise_is_refused() {
        let refused = [
            (r"\w+", "`\\d`, `\\s`"),
            (r"[\w-]", "`\\d`, `\\s`"),
            (r"[[:alpha:]]", "names in colons"),
            (r"\pL", "short names"),
            (r"\p{Letter}", "short names"),
            (r"\p{sc=Han}", "short names"),
            (r"[a--b]", "`&&` alone"),
            (r"[a~~b]", "`&&` alone"),
            (r"[]a]", "`]` of a class"),
            (r"a++", "none of them possessive"),
            (r"a{2}+", "none of them possessive"),
            (r"a+?", "greedy"),
            (r"(a*)*", "cannot be empty"),
            (r"(?i)a", "`i` alone"),
            (r"(?s:.)", "`i` alone"),
            (r"(?-i:a)", "`i` alone"),
            (r"(?<n>a)", "groups without names"),
            (r"(?i:é)", "words of ASCII"),
            (r"(?i:stra)", "words of ASCII"),
            (r"(?i:a+)", "words of ASCII"),
            (r"(?i:[^a])", "words of ASCII"),
            (r"(?i:a(b))", "words of ASCII"),
            (r"\bé", "no assertion"),
            (r"^a|b$", "no assertion"),
            (r"a(?!b)", "(look-around"),
            (r"(?<=a)b", "(look-around"),
            (r"\xe9", "characters as themselves"),
            (r"\h", "(unrecognized escape"),
            (r"\1", "(backreferences"),
            ("(", "(unclosed group"),
        ];
        for (regex, words) in refused {
            let supported = check(regex).unwrap_err();
            assert!(supported.contains(words) && !supported.contains('\n'), "{regex}: {supported}");
        }
    }
}
