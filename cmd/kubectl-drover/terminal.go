// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// terminal passes on what a command prints, without characters that a terminal obeys or that change how others look: members, and people with
// fewer rights than the reader, choose some of the text. Everything that the plugin prints goes through it, but for the display's own codes.
type terminal struct{ out io.Writer }

func (t terminal) Write(text []byte) (int, error) {
	if _, err := io.WriteString(t.out, visible(string(text))); err != nil {
		return 0, fmt.Errorf("write to the terminal: %w", err)
	}
	return len(text), nil
}

// visible is text with each character that is not printed, but for line breaks and tabs, written as \u001b: so JSON means the same as before.
func visible(text string) string {
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

// controls reports whether a character is other than what is printed, a line break or a tab.
func controls(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// plain is text on one line, with a space for each character that is not printed: whose text it is, they cannot add a line to an answer.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// say writes a format of ours with words that may be others', each made plain.
func say(b *strings.Builder, format string, words ...any) {
	for i, word := range words {
		switch word := word.(type) {
		case fmt.Stringer:
			words[i] = plain(word.String())
		default:
			if text := reflect.ValueOf(word); text.Kind() == reflect.String {
				words[i] = plain(text.String())
			}
		}
	}
	fmt.Fprintf(b, format, words...)
}
