// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// testRelease is a release that writes into a folder of the test.
func testRelease(t *testing.T) release {
	t.Helper()
	return release{
		dist: t.TempDir(), version: "v1.2.3", revision: "0123abc", image: "registry.test/drover:v1.2.3",
		platforms: []string{"linux/amd64", "linux/arm64"}, created: time.Unix(1_700_000_000, 0).UTC(),
	}
}

// somePrograms stand for the two programs, which take seconds to link.
func somePrograms() map[string][]byte {
	return map[string][]byte{managerFile: []byte("the manager"), agentFile: []byte("the agent"), hostFile: []byte("the host agent")}
}

func TestTheImageHasTheProgramsAndNothingElse(t *testing.T) {
	image, err := testRelease(t).imageOf("linux/arm64", somePrograms())
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	content := mutate.Extract(image)
	defer content.Close()
	for in := tar.NewReader(content); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			files = append(files, header.Name)
		}
		if header.Uid != 0 || header.Gid != 0 || header.Mode&0o022 != 0 {
			t.Errorf("%s belongs to %d:%d with mode %o: the user of the image could change it", header.Name, header.Uid, header.Gid, header.Mode)
		}
	}
	slices.Sort(files)
	if want := []string{agentFile, hostFile, rootsFile, managerFile}; !slices.Equal(files, want) {
		t.Errorf("the image has the files %q, want %q", files, want)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "arm64" || config.OS != "linux" {
		t.Errorf("the image is for %s/%s, want linux/arm64", config.OS, config.Architecture)
	}
	if !regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*$`).MatchString(config.Config.User) {
		t.Errorf("the image runs as %q, want numbers other than 0: a kubelet checks runAsNonRoot by number", config.Config.User)
	}
	if got := config.Config.Labels["org.opencontainers.image.revision"]; got != "0123abc" {
		t.Errorf("the label of the revision is %q, want 0123abc", got)
	}
}

// The Dockerfile and this program must make the same image.
func TestDockerfileAndReleaseBuildTheSameImage(t *testing.T) {
	root, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	wanted := []string{"USER " + imageUser + "\n", `ENTRYPOINT ["/` + managerFile + `"]`, " /" + rootsFile + "\n"}
	for file, folder := range programs() {
		wanted = append(wanted, "-o /out/"+file+" "+folder+"\n", " /out/"+file+" ")
	}
	dockerfile := strings.ReplaceAll(string(text), " \\\n", "\n")
	for _, want := range wanted {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile does not have %q, as hack/release does", want)
		}
	}
}

func TestTheRootCertificatesAreThoseOfMozilla(t *testing.T) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(rootCertificates()) {
		t.Fatal("no certificate can be read")
	}
	if n := bytes.Count(rootCertificates(), []byte("BEGIN CERTIFICATE")); n < 100 {
		t.Errorf("only %d root certificates", n)
	}
}

func TestRegistriesTakeTheArchives(t *testing.T) {
	r := testRelease(t)
	images := map[string]v1.Image{}
	for _, platform := range r.platforms {
		image, err := r.imageOf(platform, somePrograms())
		if err != nil {
			t.Fatal(err)
		}
		images[platform] = image
	}
	one, all := filepath.Join(r.dist, "one.tar"), filepath.Join(r.dist, "all.tar")
	if err := errors.Join(r.writeImage(one, images["linux/arm64"], "linux/arm64"), r.writeIndex(all, images)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	want, err := images["linux/arm64"].Digest()
	if err != nil {
		t.Fatal(err)
	}

	t.Run("one platform as Docker's tarball", func(t *testing.T) {
		image, err := tarball.ImageFromPath(one, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := image.ConfigName(); err != nil || got != must(images["linux/arm64"].ConfigName()) {
			t.Errorf("the image has the configuration %s, %v", got, err)
		}
	})
	t.Run("one platform as OCI layout", func(t *testing.T) {
		index := unpacked(t, one)
		image, err := index.Image(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
		reference := referenceAt(t, server.URL, "/drover:one")
		if err := remote.Write(reference, image); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("all platforms", func(t *testing.T) {
		outer := unpacked(t, all)
		manifest, err := outer.IndexManifest()
		if err != nil || len(manifest.Manifests) != 1 {
			t.Fatalf("the layout has the entries %+v, %v; want one: clients ask which, otherwise", manifest, err)
		}
		if got := manifest.Manifests[0].Annotations["io.containerd.image.name"]; got != r.image {
			t.Errorf("containerd would name the image %q, want %q", got, r.image)
		}
		index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		reference := referenceAt(t, server.URL, "/drover:all")
		if err := remote.WriteIndex(reference, index); err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Image(reference, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))
		if err != nil {
			t.Fatal(err)
		}
		if got := must(pulled.Digest()); got != want {
			t.Errorf("the image for arm64 is %s, want %s", got, want)
		}
	})
}

func referenceAt(t *testing.T, url, rest string) name.Reference {
	t.Helper()
	reference, err := name.ParseReference(strings.TrimPrefix(url, "http://") + rest)
	if err != nil {
		t.Fatal(err)
	}
	return reference
}

func must(hash v1.Hash, err error) v1.Hash {
	if err != nil {
		panic(err)
	}
	return hash
}

// unpacked returns the OCI layout of an archive.
func unpacked(t *testing.T, archive string) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	in, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for reader := tar.NewReader(in); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(dir, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(target, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func TestTheSBOMNamesTheModulesOfAProgram(t *testing.T) {
	program, err := os.ReadFile(must2(os.Executable()))
	if err != nil {
		t.Fatal(err)
	}
	image, err := testRelease(t).imageOf("linux/amd64", somePrograms())
	if err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(t.TempDir(), "image.cdx.json")
	if err := testRelease(t).writeSBOM(output, image, map[string][]byte{managerFile: program}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	var bom cyclonedx.BOM
	if err := json.Unmarshal(raw, &bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, component := range *bom.Components {
		found[component.Name] = component.Version
	}
	if found["github.com/google/go-containerregistry"] == "" || found["stdlib"] != strings.TrimPrefix(runtime.Version(), "go") || found[rootsModule] == "" || found[managerFile] != "v1.2.3" {
		t.Errorf("the SBOM has the components %v; want the program, its modules, Go's library and the source of the root certificates", found)
	}
}

func TestAProgramOfAnotherPlatformGetsIntoNoImage(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := testRelease(t)
	r.root = dir
	for _, built := range []string{"linux/amd64", "linux/arm64", "darwin/arm64"} {
		program := filepath.Join(dir, built, "program")
		if err := r.compile(t.Context(), built, source, program); err != nil {
			t.Fatal(err)
		}
		for _, platform := range r.platforms {
			if err := checkPlatform(program, platform); (err == nil) != (built == platform) {
				t.Errorf("a program for %s in an image for %s: %v", built, platform, err)
			}
		}
	}
}

func must2(path string, err error) string {
	if err != nil {
		panic(err)
	}
	return path
}

// Images of the same sources in two folders have the same digest. The folders have what .dockerignore lets through, as
// a clone and an archive do.
func TestImagesAreTheSameWhereverTheyAreBuilt(t *testing.T) {
	root, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	var archives [][]byte
	for _, dir := range []string{filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "another place")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"go.mod", "go.sum", "main.go", "api", "agent", "cmd", "config", "controllers", "internal"} {
			if out, err := exec.CommandContext(t.Context(), "cp", "-r", filepath.Join(root, name), dir).CombinedOutput(); err != nil {
				t.Fatalf("copy %s: %v: %s", name, err, out)
			}
		}
		r := testRelease(t)
		r.root, r.platforms = dir, []string{"linux/" + runtime.GOARCH}
		if err := r.images(t.Context()); err != nil {
			t.Fatal(err)
		}
		archive, err := os.ReadFile(filepath.Join(r.dist, "images", "drover.tar"))
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, archive)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the archives of two folders differ")
	}
}
