// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestArchivesHaveThePluginForTheirPlatform(t *testing.T) {
	r := testRelease(t)
	files := map[string]file{"kubectl-drover": {[]byte("program"), 0o755}, "LICENSE": {[]byte("terms"), 0o644}}
	for platform, names := range map[string]func([]byte) []string{
		"linux/arm64": func(archive []byte) (names []string) {
			in, err := gzip.NewReader(bytes.NewReader(archive))
			if err != nil {
				t.Fatal(err)
			}
			for reader := tar.NewReader(in); ; {
				header, err := reader.Next()
				if err == io.EOF {
					return names
				} else if err != nil {
					t.Fatal(err)
				}
				if header.Name == "kubectl-drover" && header.Mode != 0o755 {
					t.Errorf("the plugin has mode %o, want 755", header.Mode)
				}
				names = append(names, header.Name)
			}
		},
		"windows/amd64": func(archive []byte) (names []string) {
			in, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range in.File {
				names = append(names, f.Name)
			}
			return names
		},
	} {
		archive, err := r.archive(platform, files)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(archive); !slices.Equal(got, []string{"LICENSE", "kubectl-drover"}) {
			t.Errorf("%s has %q", r.archiveName(platform), got)
		}
		again, err := r.archive(platform, files)
		if err != nil || !bytes.Equal(archive, again) {
			t.Errorf("%s differs when it is made again: %v", r.archiveName(platform), err)
		}
	}
}

func TestKrewFindsAnArchiveForEachPlatform(t *testing.T) {
	r := testRelease(t)
	archives := map[string][]byte{}
	for _, platform := range pluginPlatforms() {
		archives[platform] = []byte(platform)
	}
	text, err := r.krew(archives)
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &struct {
		APIVersion, Kind string
		Metadata         any
		Spec             any
	}{}); err != nil {
		t.Error(err)
	}
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest.Spec.Platforms) != 5 || manifest.Spec.Version != "v1.2.3" {
		t.Fatalf("the manifest has %+v, want five platforms of v1.2.3", manifest.Spec)
	}
	for _, p := range manifest.Spec.Platforms {
		platform := p.Selector.MatchLabels["os"] + "/" + p.Selector.MatchLabels["arch"]
		sum := sha256.Sum256(archives[platform])
		if p.SHA256 != hex.EncodeToString(sum[:]) || !strings.HasSuffix(p.URI, "/v1.2.3/"+r.archiveName(platform)) || p.Bin != "kubectl-drover"+extension(platform) {
			t.Errorf("%s has %+v", platform, p)
		}
	}
}

func TestTheChecksumsCanBeChecked(t *testing.T) {
	r := testRelease(t)
	if err := os.MkdirAll(filepath.Join(r.dist, "plugin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dist, "plugin", "a.tar.gz"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it does not count itself
		if err := r.checksums(); err != nil {
			t.Fatal(err)
		}
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "checksums.txt")
	check.Dir = r.dist
	if out, err := check.CombinedOutput(); err != nil || string(out) != "plugin/a.tar.gz: OK\n" {
		t.Errorf("%v: %s", err, out)
	}
}
