// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 100)
	for name, tc := range map[string]struct {
		in   string
		want []string
		err  error
	}{
		"short lines":                      {"a\nb\n", []string{"a", "b"}, nil},
		"an empty line is a line":          {"a\n\nb\n", []string{"a", "", "b"}, nil},
		"a last line without a line break": {"a\nb", []string{"a", "b"}, nil},
		"carriage returns are removed":     {"a\r\n", []string{"a"}, nil},
		"no line":                          {"", nil, nil},
		"a line longer than the buffer":    {long + "\na\n" + long + "\n", []string{long, "a", long}, nil},
		"a line longer than the limit":     {"a\n" + long + long + "\n", []string{"a"}, bufio.ErrTooLong},
		"a long line without a line break": {"a\n" + long + long, []string{"a"}, bufio.ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			lines := newLines(strings.NewReader(tc.in), 16, 150)
			var got []string
			for lines.Scan() {
				got = append(got, string(lines.Bytes()))
			}
			if strings.Join(got, "|") != strings.Join(tc.want, "|") || len(got) != len(tc.want) ||
				!errors.Is(lines.Err(), tc.err) {
				t.Errorf("the lines are %q, %v, want %q, %v", got, lines.Err(), tc.want, tc.err)
			}
		})
	}
	t.Run("an error of the reader is returned unchanged", func(t *testing.T) {
		broken := errors.New("broken")
		lines := newLines(io.MultiReader(strings.NewReader("a\nb"), failing{broken}), 16, 150)
		for lines.Scan() {
			_ = lines.Bytes()
		}
		if !errors.Is(lines.Err(), broken) {
			t.Errorf("got %v, want %v", lines.Err(), broken)
		}
	})
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := newPace(rate.NewLimiter(10, 5))
		for i := range 3 {
			for range 50 { // five seconds above the rate, then a rest
				if err := pace.wait(t.Context(), 1); err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
			}
			time.Sleep(time.Second)
		}
		start := time.Now()
		var err error
		for err == nil {
			err = pace.wait(t.Context(), 1)
		}
		if took := time.Since(start); !errors.Is(err, ErrTooFast) || took < 10*time.Second || took > 12*time.Second {
			t.Errorf("got %v after %s, want %v after 10 to 12 s", err, took, ErrTooFast)
		}
	})
}
