// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// These constants describe the image. The Dockerfile uses the same values.
const (
	imageUser       = "65532:65532"
	rootsFile       = "etc/ssl/certs/ca-certificates.crt"
	managerFile     = "manager"
	provisionerFile = "drover-provisioner"
	agentFile       = "drover-agent"
	hostFile        = "drover-host-agent" // the manager serves this file to joining machines
)

// programs maps each binary in the image to the main package that it is built from.
func programs() map[string]string {
	return map[string]string{
		managerFile: ".", provisionerFile: "./cmd/drover-provisioner", agentFile: "./agent",
		hostFile: "./cmd/drover-host-agent",
	}
}

// images writes an archive and an SBOM for each platform, and an archive with the images for all platforms.
func (r release) images(ctx context.Context) error {
	work, err := os.MkdirTemp("", "drover-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dir := filepath.Join(r.dist, "images")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	built := map[string]v1.Image{}
	for _, platform := range r.platforms {
		files := map[string][]byte{}
		for file, source := range programs() {
			output := filepath.Join(work, platform, file)
			if err := r.compile(ctx, platform, source, output); err != nil {
				return err
			}
			if err := checkPlatform(output, platform); err != nil {
				return err
			}
			if files[file], err = os.ReadFile(output); err != nil {
				return err
			}
		}
		if built[platform], err = r.imageOf(platform, files); err != nil {
			return err
		}
		base := filepath.Join(dir, "drover-"+strings.ReplaceAll(platform, "/", "-"))
		if err := r.writeSBOM(base+".cdx.json", built[platform], files); err != nil {
			return err
		}
		if err := r.writeImage(base+".tar", built[platform], platform); err != nil {
			return err
		}
	}
	return r.writeIndex(filepath.Join(dir, "drover.tar"), built)
}

func (r release) imageOf(platform string, files map[string][]byte) (v1.Image, error) {
	parsed, err := v1.ParsePlatform(platform)
	if err != nil {
		return nil, fmt.Errorf("platform %s: %w", platform, err)
	}
	roots, err := layerOf(map[string]file{rootsFile: {content: rootCertificates(), mode: 0o444}}, r.created)
	if err != nil {
		return nil, err
	}
	executables := map[string]file{}
	for name, content := range files {
		executables[name] = file{content: content, mode: 0o555}
	}
	binaries, err := layerOf(executables, r.created)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: r.created}
	if image, err = mutate.Append(image,
		mutate.Addendum{Layer: roots, History: v1.History{Created: created, CreatedBy: "root certificates"}},
		mutate.Addendum{Layer: binaries, History: v1.History{Created: created, CreatedBy: "programs"}}); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created, config.OS, config.Architecture, config.Variant = created, parsed.OS, parsed.Architecture, parsed.Variant
	config.Config = v1.Config{User: imageUser, Entrypoint: []string{"/" + managerFile}, WorkingDir: "/", Labels: r.labels()}
	return mutate.ConfigFile(image, config)
}

// labels returns the image's labels. The OCI image specification defines these labels.
func (r release) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	labels := map[string]string{
		prefix + "title": "drover", prefix + "description": "Manages many Kubernetes clusters from one: the manager of the hub, and the agent of its members",
		prefix + "source": "https://github.com/drover-dev/drover", prefix + "licenses": "Apache-2.0",
		prefix + "version": r.version, prefix + "created": r.created.Format(time.RFC3339),
	}
	if r.revision != "" {
		labels[prefix+"revision"] = r.revision
	}
	return labels
}

type file struct {
	content []byte
	mode    int64
}

// layerOf creates a layer from files and their parent folders. Everything in the layer belongs to root, so the
// image's user cannot change it.
func layerOf(files map[string]file, created time.Time) (v1.Layer, error) {
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	folders := map[string]bool{}
	for _, name := range sorted(files) {
		for dir, above := path.Dir(name), []string(nil); ; dir = path.Dir(dir) {
			if dir != "." && !folders[dir] {
				above = append(above, dir)
				continue
			}
			slices.Reverse(above)
			for _, dir := range above {
				folders[dir] = true
				if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: created}); err != nil {
					return nil, err
				}
			}
			break
		}
		if err := writeFile(out, name, files[name], created); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

func writeFile(out *tar.Writer, name string, f file, created time.Time) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: f.mode, Size: int64(len(f.content)), ModTime: created}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err := out.Write(f.content)
	return err
}

// rootCertificates returns the version of Mozilla's root certificates that is pinned in go.mod. It skips root
// certificates that Mozilla trusts only with a constraint, because a PEM file cannot express constraints.
func rootCertificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer never fails
		}
	}
	return out.Bytes()
}

// reference returns the full name of the image in the form that container runtimes use.
func (r release) reference() (string, error) {
	reference, err := name.ParseReference(r.image)
	if err != nil {
		return "", fmt.Errorf("IMG=%s is not the name of an image: %w", r.image, err)
	}
	return strings.Replace(reference.Name(), "index.docker.io/", "docker.io/", 1), nil
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
