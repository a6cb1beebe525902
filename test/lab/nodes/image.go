// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

//go:embed pause/main.go
var pauseSource []byte

// Image is a container image that consists of static binaries.
type Image struct {
	// Name is the image reference, such as example.com/web:1. Aliases are additional references.
	Name    string
	Aliases []string
	// Programs are the paths of the binaries. The image contains them in its root folder, which is in the PATH, under
	// their base names. The first one is the entrypoint.
	Programs []string
	// Files are additional files. The keys are paths in the image, and the values are files on this machine.
	Files map[string]string
	// User is the numeric user ID, such as "65532". It defaults to root.
	User string
}

// WriteImage writes the image as a tarball in the format of "docker save", which containerd, Docker and podman can
// read. It needs no registry and no daemon. The same programs produce the same bytes.
func WriteImage(path string, image Image) error {
	if len(image.Programs) == 0 {
		return fmt.Errorf("write image %s: it has no program", image.Name)
	}
	var files []archived
	for _, program := range image.Programs {
		content, err := os.ReadFile(program)
		if err != nil {
			return fmt.Errorf("write image %s: %w", image.Name, err)
		}
		files = append(files, archived{filepath.Base(program), content, 0o755})
	}
	for _, path := range slices.Sorted(maps.Keys(image.Files)) {
		content, err := os.ReadFile(image.Files[path])
		if err != nil {
			return fmt.Errorf("write image %s: %w", image.Name, err)
		}
		files = append(files, archived{strings.TrimPrefix(path, "/"), content, 0o755})
	}
	layer, err := archive(files)
	if err != nil {
		return fmt.Errorf("write image %s: %w", image.Name, err)
	}
	return WriteLayer(path, append([]string{image.Name}, image.Aliases...), layer, map[string]any{
		"Entrypoint": []string{"/" + files[0].name}, "User": image.User, "WorkingDir": "/", "Env": []string{"PATH=/"},
	})
}

// WriteLayer writes an image with a single layer in the same format as WriteImage. The layer is a tarball of the root
// file system. config is the part of the image's configuration that applies to containers.
func WriteLayer(path string, names []string, layer []byte, config map[string]any) error {
	encoded, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return fmt.Errorf("write image %s: %w", names[0], err)
	}
	manifest, err := json.Marshal([]object{{"Config": digest(encoded) + ".json", "RepoTags": names, "Layers": []string{digest(layer) + ".tar"}}})
	if err != nil {
		return fmt.Errorf("write image %s: %w", names[0], err)
	}
	content, err := archive([]archived{
		{digest(encoded) + ".json", encoded, 0o644}, {digest(layer) + ".tar", layer, 0o644}, {"manifest.json", manifest, 0o644},
	})
	if err != nil {
		return fmt.Errorf("write image %s: %w", names[0], err)
	}
	return os.WriteFile(path, content, 0o644)
}

type archived struct {
	name    string
	content []byte
	mode    int64
}

func archive(files []archived) ([]byte, error) {
	var buf bytes.Buffer
	out := tar.NewWriter(&buf)
	for _, f := range files {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.content)), Mode: f.mode}); err != nil {
			return nil, err
		}
		if _, err := out.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := out.Close()
	return buf.Bytes(), err
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// writePauseImage writes an image to path. The image contains the program that holds a pod's namespaces.
func writePauseImage(ctx context.Context, path string) error {
	dir, err := os.MkdirTemp("", "drover-lab-pause-")
	if err != nil {
		return fmt.Errorf("build the pause image: %w", err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "pause")
	if err := BuildPause(ctx, program); err != nil {
		return err
	}
	return WriteImage(path, Image{Name: pauseImage, Programs: []string{program}, User: "65535:65535"})
}

// BuildPause builds the program that holds a pod's namespaces.
func BuildPause(ctx context.Context, program string) error {
	dir, err := os.MkdirTemp("", "drover-lab-pause-")
	if err != nil {
		return fmt.Errorf("build the pause image: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), pauseSource, 0o644); err != nil {
		return fmt.Errorf("build the pause image: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the pause image: go build: %w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}

// copyFile copies a file. The target may be on another file system. It gets its final name only once the copy is
// complete.
func copyFile(from, to string, mode os.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	target, err := os.CreateTemp(filepath.Dir(to), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(target.Name())
	_, err = io.Copy(target, source)
	if err := errors.Join(err, target.Chmod(mode), target.Close()); err != nil {
		return err
	}
	return os.Rename(target.Name(), to)
}
