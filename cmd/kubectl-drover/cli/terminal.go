// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Terminal escapes all characters in a command's output that control the terminal or change the appearance of other
// characters. Some of the output comes from members, or from users with fewer rights than the reader. All output of the
// plugin goes through a Terminal, except for the escape codes that "plan watch" uses to redraw the display.
type Terminal struct{ Out io.Writer }

// Write writes the text after passing it through Visible.
func (t Terminal) Write(text []byte) (int, error) {
	if _, err := io.WriteString(t.Out, Visible(string(text))); err != nil {
		return 0, fmt.Errorf("write to the terminal: %w", err)
	}
	return len(text), nil
}

// Visible replaces each non-printable character except line breaks and tabs with an escape sequence such as \u001b. The
// escape sequences do not change the meaning of JSON.
func Visible(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, controls) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\u%04x`, text[0])
		case controls(r):
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		default:
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

// controls reports whether a character is not printable. Line breaks and tabs count as printable.
func controls(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// Plain returns text as a single line, with each non-printable character replaced with a space. This prevents the
// author of the text from adding lines to the output.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// shellWord matches words that need no quotes in a shell.
var shellWord = regexp.MustCompile(`^[A-Za-z0-9_@:,./+-]+$`)

// Quoted quotes a word of a command that the user may copy into a shell. It applies Plain to the word.
func Quoted(word string) string {
	word = Plain(word)
	if shellWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Say formats a text and appends it to b. It applies Plain to each argument, because other users may have written the
// arguments.
func Say(b *strings.Builder, format string, words ...any) {
	for i, word := range words {
		switch word := word.(type) {
		case fmt.Stringer:
			words[i] = Plain(word.String())
		default:
			if text := reflect.ValueOf(word); text.Kind() == reflect.String {
				words[i] = Plain(text.String())
			}
		}
	}
	fmt.Fprintf(b, format, words...)
}
