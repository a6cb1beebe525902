// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package untrusted_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/untrusted"
)

func TestJSONIsDecodedOnlyWithinItsLimits(t *testing.T) {
	bounds := untrusted.Bounds{Bytes: 100, Nodes: 10, Depth: 3}
	for name, tt := range map[string]struct {
		text string
		ok   bool
	}{
		"an object":                 {`{"a":[1,2,{"b":null}]}`, true},
		"marks in strings are text": {`{"a":"[[[[[[{{{{{{,,,,,,::::::\"[[[["}`, true},
		"a quote after a backslash does not end a string": {`["\\","\"[[[[[[[[[[[[[["]`, true},
		"as many values as permitted":                     {`[1,2,3,4,5,6,7,8,9]`, true},
		"one value more":                                  {`[1,2,3,4,5,6,7,8,9,10]`, false},
		"keys count":                                      {`{"a":1,"b":2,"c":3,"d":4,"e":5}`, false},
		"empty objects count":                             {`[{},{},{},{},{}]`, false},
		"as deep as permitted":                            {`[[[1]]]`, true},
		"one level more":                                  {`[[[[1]]]]`, false},
		"more bytes than permitted":                       {`"` + strings.Repeat("x", 100) + `"`, false},
		"invalid JSON":                                    {`{"a":}`, false},
		"a string that does not end":                      {`"abc\`, false},
		"two values":                                      {`{} {}`, false},
		"spaces around a value are not a second value":    {" {}\n", true},
		"brackets that close before they open":            {`]]]]{`, false},
	} {
		t.Run(name, func(t *testing.T) {
			var into any
			if err := untrusted.JSON([]byte(tt.text), &into, bounds); (err == nil) != tt.ok {
				t.Errorf("got %v, want it accepted: %t", err, tt.ok)
			}
			if err := untrusted.StrictJSON([]byte(tt.text), &into, bounds); (err == nil) != tt.ok {
				t.Errorf("strict: got %v, want it accepted: %t", err, tt.ok)
			}
			if err := untrusted.ReadJSON(strings.NewReader(tt.text), &into, bounds); (err == nil) != tt.ok {
				t.Errorf("read: got %v, want it accepted: %t", err, tt.ok)
			}
		})
	}
	if err := untrusted.StrictJSON([]byte(`{"other":1}`), &struct{}{}, bounds); err == nil {
		t.Error("an unknown field was accepted, want an error")
	}
}

func TestItemsOfAListAreLimited(t *testing.T) {
	bounds := untrusted.Bounds{Bytes: 100, Nodes: 100, Depth: 4, Items: 3}
	for text, ok := range map[string]bool{
		`{"items":[{},{},{}]}`: true, `{"items":[{},{},{},{}]}`: false, `{"items":[null,null,null,null]}`: false,
		`{"items":[{"a":[1,2,3,4]}]}`: true, `{"a":1,"b":2,"c":3,"d":4}`: true,
	} {
		if err := untrusted.Check([]byte(text), bounds); (err == nil) != ok {
			t.Errorf("%s: got %v, want it accepted: %t", text, err, ok)
		}
	}
}

func TestYAMLIsReadLiterally(t *testing.T) {
	bounds := untrusted.Bounds{Bytes: 1000, Nodes: 30, Depth: 4}
	for name, tt := range map[string]struct {
		text string
		ok   bool
	}{
		"a mapping": {"a: 1\nb: [x, {c: d}]\nf: 1.5\nnone: ~\nt: true\n", true},
		"nothing":   {"", true},
		"a comment": {"# nothing\n", true},
		"JSON":      {`{"a": ["b", 1e3, null]}`, true},
		"texts in all styles": {"a: |\n  x: &y\n  *y\nb: >-\n  folded\n  text\nc: '&x'\nd: \"*x\"\n",
			true},
		"a date is a string":                     {"a: 2026-01-02\n", true},
		"a number as a key":                      {"1: a\n", true},
		"a directive":                            {"%YAML 1.1\n---\na: 1\n", true},
		"percent signs within lines":             {"a: |\n" + strings.Repeat("  %x\n", 100), true},
		"many directives":                        {directives("\n"), false},
		"directives after carriage returns":      {directives("\r"), false},
		"an anchor":                              {"a: &x 1\n", false},
		"an anchor at a key":                     {"&x a: 1\n", false},
		"an alias":                               {"a: &x 1\nb: *x\n", false},
		"an alias as a key":                      {"a: &x y\n*x : 1\n", false},
		"an anchor of the document":              {"&x\na: 1\n", false},
		"a merge key":                            {"<<: {a: b}\n", false},
		"a tag":                                  {"a: !!binary aGk=\n", false},
		"a tag at a key":                         {"!!str a: b\n", false},
		"a tag of a mapping":                     {"a: !!map {}\n", false},
		"an application's own tag":               {"a: !x b\n", false},
		"a key twice":                            {"a: 1\na: 2\n", false},
		"a list as a key":                        {"? [a]\n: b\n", false},
		"infinity":                               {"a: .inf\n", false},
		"as deep as permitted":                   {"[[[[1]]]]", true},
		"one level more":                         {"[[[[[1]]]]]", false},
		"too many values":                        {"[" + strings.Repeat("a,", 30) + "]", false},
		"too many empty values":                  {"[" + strings.Repeat("?,", 100) + "]", false},
		"more bytes than permitted":              {"a: " + strings.Repeat("x", 1000), false},
		"invalid YAML":                           {"a: [", false},
		"a script is one value with marks in it": {"a: |\n" + strings.Repeat("  - x\n", 100), true},
	} {
		t.Run(name, func(t *testing.T) {
			var got any
			err := decodeYAML([]byte(tt.text), &got, bounds)
			if (err == nil) != tt.ok {
				t.Fatalf("got %v, want it accepted: %t", err, tt.ok)
			}
			var want any
			if tt.ok && (sigsyaml.Unmarshal([]byte(tt.text), &want) != nil || !reflect.DeepEqual(got, want)) {
				t.Errorf("got %v, want %v, as from sigs.k8s.io/yaml", got, want)
			}
		})
	}
}

// directives returns many %TAG directives. The parser compares each of them with all earlier ones.
func directives(end string) string {
	var text strings.Builder
	for i := range 20 {
		fmt.Fprintf(&text, "%%TAG !%d! x%s", i, end)
	}
	return text.String() + "---\na: 1\n"
}

func TestYAMLErrorsDoNotQuoteTheText(t *testing.T) {
	for _, text := range []string{"hunter2: &hunter2 1", "hunter2: *hunter2", "hunter2: [", "hunter2: 1\nhunter2: 2",
		"!hunter2 a", "\thunter2: x", "? [hunter2]"} {
		_, err := untrusted.AsJSON([]byte(text), untrusted.Small())
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v, want an error without the text", text, err)
		}
	}
}

// allocated returns how many bytes a function allocates. This is never less than the live memory at any moment.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestCheckingJSONAllocatesNothing(t *testing.T) {
	raw := []byte(`{"a":[` + strings.Repeat(`{"x":"y"},`, 1000) + `1]}`)
	bounds := untrusted.Large()
	if n := testing.AllocsPerRun(10, func() { _ = untrusted.Check(raw, bounds) }); n != 0 {
		t.Errorf("a check allocated %v times, want none", n)
	}
}

// The inputs come from reviews, and from the texts that decoding enlarges most.
func TestMemoryOfDecodingIsLimited(t *testing.T) {
	const ceiling = 16 << 20
	aliases := "a: &a [" + strings.Repeat("x,", 2000) + "]\nb: [" + strings.Repeat("*a,", 8000) + "]\n"
	fill := func(head, unit, tail string) string {
		return head + strings.Repeat(unit, (1<<20-len(head)-len(tail))/len(unit)) + tail
	}
	for name, text := range map[string]string{
		"aliases": aliases, "empty lists": fill("[", "[],", "1]"), "empty maps": fill("[", "{},", "1]"),
		"small maps": fill("[", `{"":0},`, "1]"),
		"depth":      strings.Repeat("[", 1<<20), "numbers": fill("[", "1,", "1]"), "single pairs": fill("[", "?,", "a]"),
		"block items": fill("", "- \n", ""),
		"entries":     fill("", "? \n", ""), "nested items": fill("", "- ", ""), "comments": fill("", "#\n", "a: b\n"),
		"a script": fill("a: |\n", "  echo\n", ""),
		"newlines": fill("a: |\n", "\n", ""), "escapes": fill(`"`, `\u0000`, `"`), "quotes": fill("'", "''", "'"),
		"anchors": fill("", "&a ", "b"),
		"indents": fill("", "-\t", ""), "colons": fill("{", ":", "}"), "questions": fill("{", "?", "}"),
		"directives": fill("", "%a b\n", "---\na\n"),
	} {
		t.Run(name, func(t *testing.T) {
			for kind, decode := range map[string]func([]byte, any, untrusted.Bounds) error{"JSON": untrusted.JSON,
				"YAML": decodeYAML} {
				raw, bounds := []byte(text), untrusted.Large()
				if kind == "YAML" {
					bounds.Nodes = 4096
				}
				var into any
				var err error
				if n := allocated(func() { err = decode(raw, &into, bounds) }); n > ceiling {
					t.Errorf("%s: decoding allocated %d KiB, want at most %d (%v)", kind, n>>10, ceiling>>10, err)
				}
			}
		})
	}
}

// decodeYAML decodes a text in the same way as the callers of AsJSON.
func decodeYAML(raw []byte, into any, bounds untrusted.Bounds) error {
	text, err := untrusted.AsJSON(raw, bounds)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2,{"b":null}]}`, `["\\","\"["]`, `"abc\`, `[[[]]]`, `{"a":"\u0041"}`, "",
		"null", `{"a":{},"a":{}}`, "[1,2", `]"[`} {
		f.Add([]byte(seed))
	}
	bounds := untrusted.Bounds{Bytes: 4096, Nodes: 64, Depth: 8}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got, want any
		err := untrusted.JSON(raw, &got, bounds)
		plain := json.Unmarshal(raw, &want)
		nodes, depth := size(want)
		fits := len(raw) <= bounds.Bytes && nodes <= bounds.Nodes && depth <= bounds.Depth
		switch {
		case err == nil && (plain != nil || !fits):
			t.Errorf("a text with %d values, %d deep, was accepted, want it refused (%v)", nodes, depth, plain)
		case err == nil && !reflect.DeepEqual(got, want):
			t.Errorf("got %v, want %v", got, want)
		case errors.Is(err, untrusted.ErrTooLarge) && plain == nil && 2*nodes < bounds.Nodes && depth < bounds.Depth &&
			len(raw) <= 64:
			t.Errorf("a text with %d values, %d deep, was refused, want it accepted: %v", nodes, depth, err)
		}
	})
}

func FuzzYAML(f *testing.F) {
	for _, seed := range []string{
		"a: 1\nb: [x, {c: d}]\n", "a: |\n  x\nb: >-\n  y\n", "a: &x 1\nb: *x\n", "<<: {a: b}", "? [a]\n: b",
		"a: !!binary aGk=", "- - - a", "[?,?]", "{a: b, a: c}",
		"%YAML 1.1\n---\na\n...\n---\nb", "\"\\x41\\u0042\"", "a: 0o17\nb: 0x1F\nc: 1_000\nd: .nan",
		"#c\na: #d\n  - b #e\n#f\n", "a:\n- b\n-\n - c", "'a''b'", "a\tb: c", "\ufeffa: b",
	} {
		f.Add([]byte(seed))
	}
	bounds := untrusted.Bounds{Bytes: 4096, Nodes: 64, Depth: 8}
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, err := untrusted.AsJSON(raw, bounds)
		if err != nil {
			return
		}
		var got any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("got %q, want JSON: %v", text, err)
		}
		if nodes, depth := size(got); nodes > bounds.Nodes || depth > bounds.Depth {
			t.Errorf("got %d values, %d deep, want at most %d and %d", nodes, depth, bounds.Nodes, bounds.Depth)
		}
	})
}

// size returns the number of values and keys in decoded JSON, and their depth.
func size(value any) (nodes, depth int) {
	add := func(v any) {
		n, d := size(v)
		nodes, depth = nodes+n, max(depth, d+1)
	}
	nodes = 1
	switch v := value.(type) {
	case []any:
		depth = 1
		for _, item := range v {
			add(item)
		}
	case map[string]any:
		depth = 1
		for _, item := range v {
			nodes++
			add(item)
		}
	}
	return nodes, depth
}
