"""Java's regular expressions, rewritten for Python: equal to java.util.regex for seeded expressions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark.java_pattern import JavaPattern, PatternError

from .java_expressions import NAMES, expression

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

EXPRESSIONS = int(os.environ.get("OTTLA_JAVA_EXPRESSIONS", "600"))


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("orders|payments", ["eu.orders-v2", "orders", "payments"]),
        ("^orders|payments$", ["orders", "payments"]),
        ("order(?!s)", ["order_9"]),
        ("^[a-z&&[^p]]++$", ["a", "abab", "ba", "orders"]),
        ("(?i)^pay", ["PAYMENTS", "payments"]),
        (r"^(.)(.)\1\2$", ["abab"]),
        (r"(?<=\.)o", ["eu.orders-v2"]),
        (r"(?x) ^ \d + $ # digits", ["019"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"^\p{Upper}+$", ["PAYMENTS"]),
    ],
)
def test_pattern_selects_topics_as_java(pattern: str, selected: list[str]) -> None:
    assert sorted(name for name in NAMES if JavaPattern(pattern).finds(name)) == selected


@pytest.mark.parametrize("pattern", ["(", "a**", "[a", "a{2,1}", r"\y", r"\p{Nothing}", "(?q)", "x{", r"\k<n>"])
def test_pattern_that_java_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        JavaPattern(pattern)


def test_seeded_patterns_equal_java_util_regex(spark: SparkSession) -> None:
    """The expression of a seed is printed when it differs; OTTLA_JAVA_EXPRESSIONS=20000 compares more."""
    judge = _java_judge(spark)
    patterns = [expression(seed) for seed in range(EXPRESSIONS)]
    answers = judge(patterns)
    compiled = 0
    for seed, (pattern, java) in enumerate(zip(patterns, answers, strict=True)):
        try:
            matcher = JavaPattern(pattern)
            mine: str | None = "".join("01"[matcher.finds(name)] for name in NAMES)
            compiled += 1
        except PatternError:
            mine = None
        assert mine == java, (seed, pattern)
    assert compiled > EXPRESSIONS // 4


def _java_judge(spark: SparkSession) -> Any:
    """Return a function that asks the JVM, in one call: a digit for each name, or None for a wrong expression."""

    jvm: Any = spark._jvm
    source = """
        public class RegexJudge implements org.apache.spark.sql.api.java.UDF2 {
            public Object call(Object pattern, Object names) {
                java.util.regex.Pattern compiled;
                try { compiled = java.util.regex.Pattern.compile((String) pattern); }
                catch (java.util.regex.PatternSyntaxException wrong) { return null; }
                StringBuilder found = new StringBuilder();
                String[] listed = ((String) names).split(" ");
                for (int i = 0; i < listed.length; i++) found.append(compiled.matcher(listed[i]).find() ? '1' : '0');
                return found.toString();
            }
        }"""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(source)
    judge = (
        compiler.getClassLoader()
        .loadClass("RegexJudge")
        .getConstructors()[0]
        .newInstance(spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 0))
    )

    def ask(patterns: list[str]) -> list[str | None]:
        names = " ".join(NAMES)
        return [judge.call(pattern, names) for pattern in patterns]

    return ask
