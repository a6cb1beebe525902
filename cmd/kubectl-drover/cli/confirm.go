// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// BindYes adds the flag --yes, which confirms a destructive command.
func BindYes(c *cobra.Command, yes *bool) {
	c.Flags().BoolVar(yes, "yes", false, "Do not ask for confirmation")
}

// Confirm asks the user at a terminal whether to continue. The question must name the target and say what will be lost.
// Without a terminal, Confirm returns an error, so scripts must use --yes.
func Confirm(c *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	in, isFile := c.InOrStdin().(*os.File)
	if isFile && term.IsTerminal(int(in.Fd())) {
		return ask(c.Context(), in, c.ErrOrStderr(), question)
	}
	return fmt.Errorf("nothing was changed: %s? Confirm with --yes", question)
}

// ErrDeclined is returned when the user does not confirm a command.
var ErrDeclined = errors.New("nothing was changed")

func ask(ctx context.Context, in io.Reader, out io.Writer, question string) error {
	fmt.Fprintf(out, "%s? [y/N] ", Plain(question))
	line, err := "", error(nil)
	read := make(chan struct{})
	go func() { // canceled when the user interrupts the program
		defer close(read)
		line, err = bufio.NewReader(io.LimitReader(in, maxAnswer)).ReadString('\n')
	}()
	select {
	case <-read:
	case <-ctx.Done():
		return ErrDeclined
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return ErrDeclined
}

// maxAnswer is the maximum length of the user's answer, in bytes.
const maxAnswer = 1 << 10
