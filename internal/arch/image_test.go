// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// A goPackage is the description of a package from "go list -json".
type goPackage struct {
	Dir                                           string
	GoFiles, CgoFiles, SFiles, HFiles, EmbedFiles []string
	Module                                        *struct {
		Path string
		Main bool
	}
}

// dependencies returns the packages that a program of this module is built from, for the platform of the image.
func dependencies(t *testing.T, program string) []goPackage {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-json=Dir,GoFiles,CgoFiles,SFiles,HFiles,EmbedFiles,Module", program)
	command.Dir = root(t)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list %s: %v: %s", program, err, stderr.String())
	}
	var all []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list %s: %v", program, err)
		}
		all = append(all, p)
	}
}

// The build context must contain every source of the image. .dockerignore determines the build context.
func TestBuildContextHasAllThatTheImageIsBuiltFrom(t *testing.T) {
	ignored := ignoreRules(t, readFile(t, ".dockerignore"))
	files := []string{"go.mod", "go.sum"}
	for _, program := range []string{".", "./cmd/drover-provisioner", "./agent", "./cmd/drover-host-agent"} {
		files = append(files, sources(t, dependencies(t, program))...)
	}
	slices.Sort(files)
	files = slices.Compact(files)
	if len(files) < 100 {
		t.Fatalf("got only %d files from go list, want all", len(files))
	}
	report(t, leftOut(t, ignored, files))

	t.Run("a file that is left out is named", func(t *testing.T) {
		rules := ignoreRules(t, "*\n!main.go\n!api\n")
		expect(t, leftOut(t, rules, []string{"main.go", "api/v1/a.go", "config/crd/a.yaml"}),
			".dockerignore excludes config/crd/a.yaml")
	})
}

// sources returns the files of this module that the packages are compiled from, relative to its root.
func sources(t *testing.T, packages []goPackage) []string {
	t.Helper()
	var files []string
	for _, p := range packages {
		if p.Module == nil || !p.Module.Main {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.SFiles, p.HFiles, p.EmbedFiles) {
			file, err := filepath.Rel(root(t), filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, filepath.ToSlash(file))
		}
	}
	return files
}

func leftOut(t *testing.T, ignored *patternmatcher.PatternMatcher, files []string) []string {
	t.Helper()
	var problems []string
	for _, file := range files {
		out, err := ignored.MatchesOrParentMatches(file)
		if err != nil {
			t.Fatal(err)
		}
		if out {
			problems = append(problems, ".dockerignore excludes "+file+", which the image is built from")
		}
	}
	return problems
}

func ignoreRules(t *testing.T, text string) *patternmatcher.PatternMatcher {
	t.Helper()
	patterns, err := ignorefile.ReadAll(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	matcher, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return matcher
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
