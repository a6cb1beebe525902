// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// pluginPlatforms returns the platforms for which the kubectl plugin is built.
func pluginPlatforms() []string {
	return []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}
}

// downloads is the base URL of the files of published releases.
const downloads = "https://github.com/drover-dev/drover/releases/download/"

// plugins writes an archive of the plugin for each platform. It also writes the manifest that krew uses to install the
// plugin.
func (r release) plugins(ctx context.Context) error {
	dir := filepath.Join(r.dist, "plugin")
	work, err := os.MkdirTemp("", "drover-plugin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	archives := map[string][]byte{}
	for _, platform := range pluginPlatforms() {
		binary := "kubectl-drover" + extension(platform)
		output := filepath.Join(work, platform, binary)
		if err := r.compile(ctx, platform, "./cmd/kubectl-drover", output); err != nil {
			return err
		}
		content, err := os.ReadFile(output)
		if err != nil {
			return err
		}
		archive, err := r.archive(platform, map[string]file{binary: {content, 0o755}, "LICENSE": {license, 0o644}})
		if err != nil {
			return err
		}
		archives[platform] = archive
		if err := os.WriteFile(filepath.Join(dir, r.archiveName(platform)), archive, 0o644); err != nil {
			return err
		}
	}
	manifest, err := r.krew(archives)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "drover.yaml"), manifest, 0o644)
}

func extension(platform string) string {
	if strings.HasPrefix(platform, "windows/") {
		return ".exe"
	}
	return ""
}

// archiveName returns the name of a platform's archive. Windows can unpack zip without other tools, and the other
// platforms can unpack tar.gz.
func (r release) archiveName(platform string) string {
	kind := ".tar.gz"
	if extension(platform) != "" {
		kind = ".zip"
	}
	return "kubectl-drover_" + r.version + "_" + strings.ReplaceAll(platform, "/", "_") + kind
}

// archive packs files into an archive. The timestamp of the files is the time of the release.
func (r release) archive(platform string, files map[string]file) ([]byte, error) {
	if extension(platform) != "" {
		return r.zipped(files)
	}
	var buffer bytes.Buffer
	compressed := gzip.NewWriter(&buffer)
	out := tar.NewWriter(compressed)
	for _, name := range sorted(files) {
		if err := writeFile(out, name, files[name], r.created); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(out.Close(), compressed.Close()); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

func (r release) zipped(files map[string]file) ([]byte, error) {
	var buffer bytes.Buffer
	out := zip.NewWriter(&buffer)
	for _, name := range sorted(files) {
		header := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: r.created}
		header.SetMode(fs.FileMode(files[name].mode))
		entry, err := out.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := entry.Write(files[name].content); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

// krew returns the krew manifest of the plugin. Its format is documented at
// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
func (r release) krew(archives map[string][]byte) ([]byte, error) {
	var platforms []any
	for _, platform := range pluginPlatforms() {
		goos, goarch, _ := strings.Cut(platform, "/")
		sum := sha256.Sum256(archives[platform])
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"os": goos, "arch": goarch}},
			"uri":      downloads + r.version + "/" + r.archiveName(platform), "sha256": hex.EncodeToString(sum[:]), "bin": "kubectl-drover" + extension(platform),
		})
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": map[string]any{"name": "drover"},
		"spec": map[string]any{
			"version": r.version, "homepage": "https://github.com/drover-dev/drover", "platforms": platforms,
			"shortDescription": "Explain rights and preview plans in many clusters",
			"description":      "Explains who may do what in the clusters that a Drover hub manages, and why; previews its plans.",
		},
	})
}
