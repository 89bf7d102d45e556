"""The roster: every honest table is read, every fault named with its line."""

import pytest

from shardlab.bad_input import BadInput
from shardlab.grade.gradebook.standing import Student
from shardlab.grade.intake import read_roster

JANE, JOSE = Student("s1", "Doe, Jane", "jane@example.org"), Student("1234567", "José Ñandú", "")


@pytest.mark.parametrize(
    "text",
    [
        'id,name,email\ns1,"Doe, Jane",jane@example.org\n1234567,José Ñandú,\n',
        '\ufeffName,EMAIL, Id \r\n"Doe, Jane",jane@example.org,s1\r\nJosé Ñandú,,1234567\r\n',
        "id;name;email;section\ns1;Doe, Jane;jane@example.org;A\n\n;;;\n1234567; José Ñandú ;;B",
        "email\tname\tid\njane@example.org\tDoe, Jane\ts1\n\tJose\u0301 N\u0303andu\u0301\t1234567\n",
    ],
    ids=["plain", "BOM, CRLF, other order", "semicolons, more columns, blank lines", "tabs, decomposed letters"],
)
def test_a_table_in_any_dialect_is_read(tmp_path, text):
    path = tmp_path / "roster.csv"
    path.write_bytes(text.encode())
    assert read_roster(path) == [JANE, JOSE]


def test_the_column_of_addresses_may_be_missing(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("id,name\ns1,Jane\n")
    assert read_roster(path) == [Student("s1", "Jane", "")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "roster.csv is empty: its first line should be id,name,email"),
        ("\n\n", "roster.csv is empty"),
        ("id,name,email\n", "roster.csv holds no student below its first line"),
        ("s1,Jane,\n", "roster.csv has no column id or name: its first line should be id,name,email"),
        ("id,email\ns1,\n", "roster.csv has no column name"),
        ("id,name,ID\ns1,Jane,\n", "roster.csv has the column id twice"),
        ("id,name\ns1,A\ns2,B\nS1,C\n", 'line 4: the id "S1" stands in line 2 too'),
        ("id,name\n,A\n", "line 2: the id is empty"),
        ('id,name\ns1,"two\nlines"\n,B\n', "line 4: the id is empty"),
        ("id,name\n../x,A\n", 'line 2: the id "../x" cannot name a file'),
        ("id,name\n.,A\n", "cannot name a file"),
        ("id,name\na/b,A\n", "cannot name a file"),
        ("id,name\na b,A\n", "cannot name a file"),
        ("id,name\n-rf,A\n", "cannot name a file"),
        ("id,name\n=1+1,A\n", "cannot name a file"),
        ("id,name\ns1.,A\n", "cannot name a file"),
        ("id,name\nNUL,A\n", "cannot name a file"),
        ("id,name\ncom1.x,A\n", "cannot name a file"),
        (f"id,name\n{'x' * 65},A\n", "cannot name a file"),
        ("id,name\ns\0,A\n", "line 2"),
        ("id,name\ns1,Doe, Jane\n", "line 2: 3 fields, not 2; a name with a comma goes in quotes"),
        ("id,name\ns1\n", "line 2: 1 fields, not 2"),
        ('id,name\ns1,"Jane\n', "roster.csv, line 2: "),
        ("id,name\n,A\na/b,B\n", 'line 2: the id is empty; line 3: the id "a/b"'),
    ],
)
def test_faults_are_named_with_their_lines(tmp_path, text, sentence):
    path = tmp_path / "roster.csv"
    path.write_bytes(text.encode())
    with pytest.raises(BadInput) as refused:
        read_roster(path)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("roster.csv")


def test_another_encoding_is_named_with_its_line(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_bytes(b"id,name\ns1,A\ns2,M\xfcller\n")
    with pytest.raises(BadInput, match=r"^roster.csv, line 3: not UTF-8; save the table as CSV in UTF-8$"):
        read_roster(path)


def test_no_file_and_a_file_too_large_are_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_roster(tmp_path / "nowhere.csv")
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadInput, match="too many for a roster"):
        read_roster(tmp_path / "large.csv")
