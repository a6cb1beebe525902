// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// outputLines is the maximum number of lines of a command's output in the transcript.
const outputLines = 40

// introduction is the beginning of the transcript.
const introduction = `# An operator's first weeks

Written by "make e2e". Each command can be typed as it stands here. hub$, prod$ and edge$ have the kubeconfig of the
administrator of that cluster; a name has the kubeconfig of that user.
`

// transcript is a Markdown file with the commands, their output and their durations.
type transcript struct {
	mu  sync.Mutex
	out *os.File
}

// openTranscript creates the transcript that the environment variable names, in the folder of the sources, or a
// temporary one.
func openTranscript(t *testing.T, sources string) *transcript {
	t.Helper()
	path := os.Getenv(envTranscript)
	switch {
	case path == "":
		path = os.DevNull
	case !filepath.IsAbs(path):
		path = filepath.Join(sources, path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	tr := &transcript{out: f}
	tr.print("%s", introduction)
	return tr
}

func (tr *transcript) print(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	fmt.Fprintf(tr.out, format, args...) // a transcript that cannot be written fails no story
}

func (tr *transcript) heading(text string) { tr.print("\n## %s\n", text) }

func (tr *transcript) note(format string, args ...any) { tr.print("\n"+format+"\n", args...) }

func (tr *transcript) file(name, content string) {
	tr.print("\n`%s`:\n\n```yaml\n%s```\n", name, content)
}

func (tr *transcript) command(where, line, output string, err error, took time.Duration) {
	output = shortened(strings.TrimSpace(output))
	if err != nil {
		output += fmt.Sprintf("\n(%v)", err)
	}
	tr.print("\n```\n%s$ %s\n%s\n```\n%s\n", where, line, output, took.Round(10*time.Millisecond))
}

// shortened returns the first and the last lines of a long text.
func shortened(text string) string {
	lines := strings.Split(text, "\n")
	if len(lines) <= outputLines {
		return text
	}
	head, tail := lines[:outputLines-5], lines[len(lines)-4:]
	return strings.Join(head, "\n") + fmt.Sprintf("\n… %d lines …\n", len(lines)-len(head)-len(tail)) + strings.Join(tail, "\n")
}
