// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestADestructiveCommandIsConfirmed(t *testing.T) {
	c := &cobra.Command{}
	c.SetIn(strings.NewReader("y\n"))
	err := Confirm(c, false, "remove everything from https://prod")
	if err == nil || !strings.Contains(err.Error(), "https://prod? Confirm with --yes") {
		t.Errorf("without a terminal: %v, want an error that names the target", err)
	}
	if err := Confirm(c, true, "remove"); err != nil {
		t.Errorf("with --yes: %v", err)
	}
	for answer, want := range map[string]error{"y\n": nil, "YES\n": nil, "yes": nil, "n\n": ErrDeclined, "\n": ErrDeclined, "": ErrDeclined} {
		var out strings.Builder
		err := ask(t.Context(), strings.NewReader(answer), &out, "remove it")
		if !errors.Is(err, want) || out.String() != "remove it? [y/N] " {
			t.Errorf("answer %q: %v after %q, want %v", answer, err, out.String(), want)
		}
	}
	if err := ask(t.Context(), failing{}, io.Discard, "x"); err == nil || errors.Is(err, ErrDeclined) {
		t.Errorf("an answer that cannot be read: %v", err)
	}
}

func TestAQuestionEndsWithAnInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	in, answer := io.Pipe()
	defer answer.Close()
	if err := ask(ctx, in, io.Discard, "remove it"); !errors.Is(err, ErrDeclined) {
		t.Errorf("after an interrupt: %v, want %v", err, ErrDeclined)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken") }
