// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/lab/nodes"
)

// packages are the Debian packages with the programs that the images contain.
const packages = "busybox-static curl dnsutils netcat-openbsd iperf nginx-light"

// tools are programs of this machine that images contain in addition to busybox.
func tools() []string {
	return []string{"bash", "curl", "dig", "nslookup", "nc", "iperf", "ip", "getent", "hostname", "unshare", "nsenter", "printenv"}
}

// checkPrograms returns an error that lists the programs that are missing on this machine, and says what to do.
func checkPrograms() error {
	var missing []string
	for _, program := range append(tools(), "busybox", "nginx") {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("programs are missing (%s): apt-get install %s", strings.Join(missing, ", "), packages)
	}
	return nil
}

// A root is the root file system of an image. The keys are paths without a leading slash.
type root map[string]tar.Header

// content is the content of a root's files, by path. It is stored separately from the headers.
type image struct {
	root    root
	content map[string][]byte
	config  map[string]any
}

const pathOfImages = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func newImage(entrypoint []string, cmd ...string) *image {
	i := &image{root: root{}, content: map[string][]byte{}, config: map[string]any{"Entrypoint": entrypoint, "Cmd": cmd, "Env": []string{pathOfImages}}}
	for _, dir := range []string{"bin", "etc", "home", "root", "run", "var/log", "usr/bin", "usr/sbin"} {
		i.dir(dir, 0o755)
	}
	i.dir("tmp", 0o1777)
	return i
}

func (i *image) dir(at string, mode int64) {
	for parent := path.Dir(at); parent != "."; parent = path.Dir(parent) {
		if _, found := i.root[parent]; !found {
			i.root[parent] = tar.Header{Typeflag: tar.TypeDir, Name: parent + "/", Mode: 0o755}
		}
	}
	i.root[at] = tar.Header{Typeflag: tar.TypeDir, Name: at + "/", Mode: mode}
}

func (i *image) link(at, to string) {
	i.dir(path.Dir(at), 0o755)
	i.root[at] = tar.Header{Typeflag: tar.TypeSymlink, Name: at, Linkname: to, Mode: 0o777}
}

func (i *image) write(at string, content []byte, mode int64) {
	if path.Dir(at) != "." {
		i.dir(path.Dir(at), 0o755)
	}
	i.root[at] = tar.Header{Typeflag: tar.TypeReg, Name: at, Size: int64(len(content)), Mode: mode}
	i.content[at] = content
}

// add copies a file of this machine. For a link, it copies the file that the link points to.
func (i *image) add(file, at string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	i.write(strings.TrimPrefix(at, "/"), content, 0o755)
	return nil
}

// addTree copies the files of a folder to the root of the image.
func (i *image) addTree(dir string) error {
	return filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		at, err := filepath.Rel(dir, file)
		return errors.Join(err, i.add(file, at))
	})
}

var libraryPath = regexp.MustCompile(`/\S+`)

// addProgram copies a program of this machine with its libraries, and creates a link to it in /bin.
func (i *image) addProgram(ctx context.Context, name string) error {
	file, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	delete(i.root, "bin/"+name) // of busybox
	if err := i.add(file, file); err != nil {
		return err
	}
	if path.Dir(file) != "/bin" {
		i.link("bin/"+name, file)
	}
	libraries, err := exec.CommandContext(ctx, "ldd", file).Output()
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", file, err)
	}
	for line := range strings.Lines(string(libraries)) {
		_, location, found := strings.Cut(line, "=>")
		if !found {
			location = line
		}
		if library := libraryPath.FindString(location); library != "" && exists(library) {
			if err := i.add(library, library); err != nil {
				return err
			}
		}
	}
	return nil
}

// addBusybox copies busybox with its applets, and the users of the images.
func (i *image) addBusybox(ctx context.Context) error {
	file, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	applets, err := exec.CommandContext(ctx, file, "--list").Output()
	if err != nil {
		return err
	}
	for applet := range strings.Lines(string(applets)) {
		i.link("bin/"+strings.TrimSpace(applet), "busybox")
	}
	i.link("sbin", "bin")
	i.link("usr/bin/env", "/bin/busybox")
	i.write("etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"), 0o644)
	i.write("etc/group", []byte("root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n"), 0o644)
	return i.add(file, "bin/busybox")
}

// addTools copies the programs of a Linux distribution that tests run in pods.
func (i *image) addTools(ctx context.Context) error {
	if err := i.addBusybox(ctx); err != nil {
		return err
	}
	for _, name := range tools() {
		if err := i.addProgram(ctx, name); err != nil {
			return err
		}
	}
	for _, pattern := range []string{"libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"} {
		found, err := filepath.Glob("/lib/*/" + pattern)
		if err != nil {
			return err
		}
		for _, library := range found {
			if err := i.add(library, library); err != nil {
				return err
			}
		}
	}
	i.write("etc/nsswitch.conf", []byte("hosts: files dns\n"), 0o644)
	i.dir("uploads", 0o755)
	return nil
}

// tarball writes the image.
func (i *image) tarball(file string, names []string) error {
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	for _, at := range slices.Sorted(maps.Keys(i.root)) {
		header := i.root[at]
		if err := out.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := out.Write(i.content[at]); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return nodes.WriteLayer(file, names, layer.Bytes(), i.config)
}

// writeImages writes tarballs of the images that the chosen tests use, each with the names that the suite uses, and
// returns their paths.
func writeImages(ctx context.Context, dir string, names []string, sources string, assets lab.Assets) ([]string, error) {
	pause := filepath.Join(dir, "pause")
	if err := nodes.BuildPause(ctx, pause); err != nil {
		return nil, err
	}
	var tarballs []string
	for name, build := range builders(ctx, sources, pause, assets) {
		tagged := regexp.MustCompile(`^` + regexp.QuoteMeta(registry+"/"+name) + `:\S+$`)
		var own []string
		for _, found := range names {
			if tagged.MatchString(found) {
				own = append(own, found)
			}
		}
		if len(own) == 0 {
			return nil, fmt.Errorf("write image %s: the suite does not use it", name)
		}
		made, err := build()
		if err != nil {
			return nil, fmt.Errorf("write image %s: %w", name, err)
		}
		file := filepath.Join(dir, name+".tar")
		if err := made.tarball(file, own); err != nil {
			return nil, err
		}
		tarballs = append(tarballs, file)
	}
	slices.Sort(tarballs)
	return tarballs, nil
}

// builders build the images. The keys are the names that the suite uses.
func builders(ctx context.Context, sources, pause string, assets lab.Assets) map[string]func() (*image, error) {
	page := func(name string) func() (*image, error) {
		return func() (*image, error) {
			i := newImage([]string{"/agnhost"}, "test-webserver")
			return i, errors.Join(i.addTools(ctx), i.add(assets[lab.Agnhost], "agnhost"), i.addTree(filepath.Join(sources, name, "html")))
		}
	}
	return map[string]func() (*image, error){
		"agnhost": func() (*image, error) {
			i := newImage([]string{"/agnhost"}, "pause")
			err := errors.Join(i.addTools(ctx), i.add(assets[lab.Agnhost], "agnhost"),
				i.add(filepath.Join(sources, "agnhost/porter/localhost.crt"), "localhost.crt"), i.add(filepath.Join(sources, "agnhost/porter/localhost.key"), "localhost.key"))
			i.link("bin/agnhost-2", "/agnhost")
			i.root["agnhost-2"] = tar.Header{Typeflag: tar.TypeSymlink, Name: "agnhost-2", Linkname: "agnhost", Mode: 0o777}
			return i, err
		},
		"kitten": page("kitten"), "nautilus": page("nautilus"),
		"glibc-dns-testing": func() (*image, error) { i := newImage(nil, "sh"); return i, i.addTools(ctx) },
		"busybox":           func() (*image, error) { i := newImage(nil, "sh"); return i, i.addBusybox(ctx) },
		"nonroot": func() (*image, error) {
			i := newImage(nil, "sh")
			i.config["User"] = "1234"
			return i, i.addBusybox(ctx)
		},
		"pause": func() (*image, error) {
			i := newImage([]string{"/pause"})
			i.config["User"] = "65535:65535"
			return i, i.add(pause, "pause")
		},
		"nginx": func() (*image, error) { return nginx(ctx) },
		"sample-apiserver": func() (*image, error) {
			i := newImage([]string{"/sample-apiserver"})
			return i, i.add(assets[lab.SampleAPIServer], "sample-apiserver")
		},
		"etcd": func() (*image, error) {
			found, err := lab.Binaries(ctx, os.Stderr, lab.Etcd)
			if err != nil {
				return nil, err
			}
			i := newImage(nil, "/usr/local/bin/etcd")
			return i, errors.Join(i.addTools(ctx), i.add(found[lab.Etcd], "usr/local/bin/etcd"))
		},
	}
}

// nginx is a web server with one page.
func nginx(ctx context.Context) (*image, error) {
	i := newImage(nil, "nginx", "-g", "daemon off;")
	err := errors.Join(i.addTools(ctx), i.addProgram(ctx, "nginx"))
	i.write("etc/nginx/nginx.conf", []byte(`user root; worker_processes 1; error_log stderr; pid /run/nginx.pid; events {}
http { access_log /dev/stdout; server { listen 80; root /usr/share/nginx/html; } }
`), 0o644)
	i.write("usr/share/nginx/html/index.html", []byte("<html><body>Welcome to nginx!</body></html>\n"), 0o644)
	i.dir("var/log/nginx", 0o755)
	i.dir("var/lib/nginx", 0o755)
	return i, err
}
