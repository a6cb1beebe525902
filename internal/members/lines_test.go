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
		"short lines":               {"a\nb\n", []string{"a", "b"}, nil},
		"an empty line is a line":   {"a\n\nb\n", []string{"a", "", "b"}, nil},
		"a last one without an end": {"a\nb", []string{"a", "b"}, nil},
		"carriage returns go":       {"a\r\n", []string{"a"}, nil},
		"nothing":                   {"", nil, nil},
		"one beyond the buffer":     {long + "\na\n" + long + "\n", []string{long, "a", long}, nil},
		"one beyond the limit":      {"a\n" + long + long + "\n", []string{"a"}, bufio.ErrTooLong},
		"one that does not end":     {"a\n" + long + long, []string{"a"}, bufio.ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			lines := newLines(strings.NewReader(tc.in), 16, 150)
			var got []string
			for lines.Scan() {
				got = append(got, string(lines.Bytes()))
			}
			if strings.Join(got, "|") != strings.Join(tc.want, "|") || len(got) != len(tc.want) || !errors.Is(lines.Err(), tc.err) {
				t.Errorf("the lines are %q, %v, want %q, %v", got, lines.Err(), tc.want, tc.err)
			}
		})
	}
	t.Run("a line without an end is returned as it is", func(t *testing.T) {
		broken := errors.New("broken")
		lines := newLines(io.MultiReader(strings.NewReader("a\nb"), failing{broken}), 16, 150)
		for lines.Scan() {
			_ = lines.Bytes()
		}
		if !errors.Is(lines.Err(), broken) {
			t.Error(lines.Err())
		}
	})
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := newPace(rate.NewLimiter(10, 5))
		for i := range 3 {
			for range 50 { // five seconds of too much, then a rest
				if err := pace.wait(t.Context(), 1); err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
			}
			time.Sleep(time.Second)
		}
		begun := time.Now()
		var err error
		for err == nil {
			err = pace.wait(t.Context(), 1)
		}
		if took := time.Since(begun); !errors.Is(err, ErrTooFast) || took < 10*time.Second || took > 12*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
	})
}
