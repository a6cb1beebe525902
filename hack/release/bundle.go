// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// offlineFiles are the files of the offline bundle that do not need to be built.
//
//go:embed offline
var offlineFiles embed.FS

// exampleURL is the hub's address in the manifests. install.sh replaces it.
const exampleURL = `"https://drover.example.com"`

// bundle writes an archive that contains everything needed to install this release on a machine without internet
// access. It expects the images, the installer, the chart and the plugins in dist.
func (r release) bundle(ctx context.Context) error {
	if err := r.checkInstaller(); err != nil {
		return err
	}
	if err := r.removeBundles(); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "drover-bundle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dir := filepath.Join(work, r.bundleName())
	if err := r.copyToBundle(dir); err != nil {
		return err
	}
	for _, platform := range r.platforms {
		program := filepath.Join(dir, "bin", "push-image-"+strings.ReplaceAll(platform, "/", "-"))
		if err := r.compileIn(ctx, filepath.Join(r.root, "hack", "release"), platform, "./pushimage", program); err != nil {
			return err
		}
		if err := os.Chmod(program, 0o755); err != nil {
			return err
		}
	}
	if err := errors.Join(r.writeScript(dir), writeChecksums(dir)); err != nil {
		return err
	}
	return r.pack(filepath.Join(r.dist, r.bundleName()+".tar"), work)
}

// removeBundles removes the bundles of former builds. Otherwise, the provenance would list them as files of this build.
func (r release) removeBundles() error {
	former, err := filepath.Glob(filepath.Join(r.dist, "drover-*-offline.tar"))
	for _, path := range former {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func (r release) bundleName() string { return "drover-" + r.version + "-offline" }

// checkInstaller returns an error if install.sh cannot replace the image and the address in the manifests.
func (r release) checkInstaller() error {
	// The tag of an image consists only of letters, digits, underscores, dots and hyphens. None of these characters
	// can end a quoted word in a shell.
	if !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`).MatchString(r.version) {
		return fmt.Errorf("VERSION=%s cannot be the tag of an image", r.version)
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]*$`).MatchString(r.image) {
		return fmt.Errorf("IMG=%s is not the name of an image", r.image)
	}
	text, err := os.ReadFile(filepath.Join(r.dist, "install.yaml"))
	if err != nil {
		return fmt.Errorf("%w: make build-installer first", err)
	}
	if !strings.Contains(string(text), "image: "+r.image+"\n") {
		return fmt.Errorf("dist/install.yaml does not have the image %s: make it again with the same IMG", r.image)
	}
	if !strings.Contains(string(text), "urls: ["+exampleURL+"]\n") {
		return errors.New("dist/install.yaml has the address of a hub: make it without URL")
	}
	return nil
}

// copyToBundle copies the documentation and the files that other steps have written. It omits the archives for single
// platforms of the image, because drover.tar has all platforms.
func (r release) copyToBundle(dir string) error {
	sboms, err := filepath.Glob(filepath.Join(r.dist, "images", "*.cdx.json"))
	if err != nil {
		return err
	}
	images := filepath.Join(dir, "images")
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	for _, path := range append(sboms, filepath.Join(r.dist, "images", "drover.tar")) {
		if err := copyFile(path, images); err != nil {
			return err
		}
	}
	for _, folder := range []string{"plugin", "chart"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(r.dist, folder))); err != nil {
			return fmt.Errorf("copy dist/%s: %w", folder, err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "docs"), os.DirFS(filepath.Join(r.root, "docs"))); err != nil {
		return fmt.Errorf("copy docs: %w", err)
	}
	installer, license := filepath.Join(r.dist, "install.yaml"), filepath.Join(r.root, "LICENSE")
	return errors.Join(copyFile(installer, dir), copyFile(license, dir))
}

func copyFile(path, folder string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, filepath.Base(path)), content, 0o644)
}

// writeScript writes the files from the folder offline, and fills in the version and image of this release.
func (r release) writeScript(dir string) error {
	entries, err := offlineFiles.ReadDir("offline")
	if err != nil {
		return err
	}
	values := strings.NewReplacer("@VERSION@", r.version, "@IMAGE@", r.image)
	for _, entry := range entries {
		text, err := offlineFiles.ReadFile("offline/" + entry.Name())
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if strings.HasSuffix(entry.Name(), ".sh") {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(dir, entry.Name()), []byte(values.Replace(string(text))), mode); err != nil {
			return err
		}
	}
	return nil
}
