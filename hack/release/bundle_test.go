// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// testBundle writes the offline bundle of a release for this platform, and returns its path. Its image has small
// programs that only stand for Drover's.
func testBundle(t *testing.T) (release, string) {
	t.Helper()
	root, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	r := testRelease(t)
	r.root, r.platforms = root, []string{"linux/" + runtime.GOARCH}
	image, err := r.imageOf(r.platforms[0], somePrograms())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(r.dist, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	images := map[string]v1.Image{r.platforms[0]: image}
	if err := r.writeIndex(filepath.Join(r.dist, "images", "drover.tar"), images); err != nil {
		t.Fatal(err)
	}
	installer := inRepository(t, []string{"IMG=" + r.image, "URL=https://drover.example.com"}, "hack/deploy.sh", "render")
	if err := os.WriteFile(filepath.Join(r.dist, "install.yaml"), installer, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.chart(t.Context()); err != nil {
		t.Fatal(err)
	}
	writeTestPlugin(t, r)
	if err := r.bundle(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, filepath.Join(r.dist, "drover-v1.2.3-offline.tar")
}

// writeTestPlugin writes the archive of a plugin for this platform.
func writeTestPlugin(t *testing.T, r release) {
	t.Helper()
	plugin := "#!/bin/sh\necho the plugin\n"
	archive, err := r.archive(r.platforms[0], map[string]file{"kubectl-drover": {[]byte(plugin), 0o755}})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(r.dist, "plugin")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, r.archiveName(r.platforms[0])), archive, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTheBundleIsTheSameWhenItIsMadeAgain(t *testing.T) {
	r, path := testBundle(t)
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(r.dist, "drover-v1.2.2-offline.tar")
	if err := errors.Join(os.WriteFile(former, first, 0o644), r.bundle(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(former); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the bundle of the former version: got %v, want it removed", err)
	}
	second, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("the second bundle differs from the first: %v", err)
	}
	modes := map[string]int64{}
	for in := tar.NewReader(bytes.NewReader(first)); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name, inside := strings.CutPrefix(header.Name, "drover-v1.2.3-offline/")
		if !inside {
			t.Errorf("%s is not in the folder of the bundle", header.Name)
		}
		modes[name] = header.Mode
	}
	for name, want := range map[string]int64{
		"install.sh": 0o755, "bin/push-image-linux-" + runtime.GOARCH: 0o755, "install.yaml": 0o644, "LICENSE": 0o644,
		"README.md": 0o644, "checksums.txt": 0o644, "images/drover.tar": 0o644, "chart/Chart.yaml": 0o644,
	} {
		if modes[name] != want {
			t.Errorf("%s has mode %o, want %o", name, modes[name], want)
		}
	}
}

func TestABundleNeedsAnInstallerThatItCanChange(t *testing.T) {
	r := testRelease(t)
	for text, want := range map[string]string{
		"image: other\n": "same IMG", "image: " + r.image + "\nurls: [\"https://hub.test\"]\n": "without URL",
	} {
		if err := os.WriteFile(filepath.Join(r.dist, "install.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := r.bundle(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q the error is %v, want %q in it", text, err, want)
		}
	}
	r.version = "v1'; reboot"
	if err := r.bundle(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be the tag") {
		t.Errorf("with a version that ends a quoted word of a shell the error is %v", err)
	}
}

func TestTheProvenanceNamesAllFilesAndTheCommit(t *testing.T) {
	r := testRelease(t)
	if err := os.WriteFile(filepath.Join(r.dist, "install.yaml"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for range 2 { // the second time it does not name itself
		if err := errors.Join(r.provenance(), r.checksums()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(r.dist, provenanceFile))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] {
		t.Error("the second provenance differs from the first")
	}
	var statement struct {
		Subject []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest struct{ GitCommit string } }
			}
		}
	}
	if err := json.Unmarshal([]byte(texts[0]), &statement); err != nil {
		t.Fatal(err)
	}
	if s := statement.Subject; len(s) != 1 || s[0].Name != "install.yaml" || len(s[0].Digest.SHA256) != 64 {
		t.Errorf("the subjects are %+v, want install.yaml", s)
	}
	sources := statement.Predicate.BuildDefinition.ResolvedDependencies
	if len(sources) != 1 || sources[0].Digest.GitCommit != r.revision {
		t.Errorf("the sources are %+v, want commit %s", sources, r.revision)
	}
}

// unpackBundle unpacks a bundle as a user does, and returns its folder.
func unpackBundle(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", path, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v: %s", path, err, out)
	}
	return filepath.Join(dir, "drover-v1.2.3-offline")
}
