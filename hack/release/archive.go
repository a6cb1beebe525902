// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeImage writes the image for one platform as an OCI layout. The layout also contains Docker's manifest.json, so
// that clients of either format can read it.
func (r release) writeImage(output string, image v1.Image, platform string) error {
	reference, err := r.reference()
	if err != nil {
		return err
	}
	manifest, err := dockerManifest(image, reference)
	if err != nil {
		return err
	}
	addendum, err := addendum(image, platform)
	if err != nil {
		return err
	}
	return r.writeLayout(output, addendum, map[string][]byte{"manifest.json": manifest})
}

// writeIndex writes an index that contains the images for all platforms.
func (r release) writeIndex(output string, images map[string]v1.Image) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range sorted(images) {
		addendum, err := addendum(images[platform], platform)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, addendum)
	}
	return r.writeLayout(output, mutate.IndexAddendum{Add: index}, nil)
}

func addendum(image v1.Image, platform string) (mutate.IndexAddendum, error) {
	parsed, err := v1.ParsePlatform(platform)
	if err != nil {
		return mutate.IndexAddendum{}, fmt.Errorf("platform %s: %w", platform, err)
	}
	return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: parsed}}, nil
}

// writeLayout writes an archive of an OCI layout and prints the digest of the layout's only entry. The entry is
// content, under the name of the image.
func (r release) writeLayout(output string, content mutate.IndexAddendum, more map[string][]byte) (err error) {
	reference, err := r.reference()
	if err != nil {
		return err
	}
	content.Annotations = map[string]string{"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), content)
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "drover-layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, index); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	for name, text := range more {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	if err := r.pack(output, dir); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	fmt.Println(manifest.Manifests[0].Digest, output)
	return nil
}

// pack writes the files in a folder into an archive. The files are sorted by name, and their timestamp is the time of
// the release.
func (r release) pack(output, dir string) (err error) {
	target, err := os.Create(output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	out := tar.NewWriter(target)
	if err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if entry.IsDir() {
			return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: r.created})
		}
		return r.packFile(out, filepath.Join(dir, name), name)
	}); err != nil {
		return err
	}
	return out.Close()
}

func (r release) packFile(out *tar.Writer, path, name string) error {
	source, err := os.Open(path)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size(), ModTime: r.created}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(out, source)
	return err
}

// dockerManifest returns the manifest.json in which "docker load" and "crane push" look up the blobs of the layout.
func dockerManifest(image v1.Image, reference string) ([]byte, error) {
	config, err := image.ConfigName()
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	entry := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: blob(config), RepoTags: []string{strings.TrimPrefix(strings.TrimPrefix(reference, "docker.io/"), "library/")}}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return nil, err
		}
		entry.Layers = append(entry.Layers, blob(digest))
	}
	return json.Marshal([]any{entry})
}

func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }
