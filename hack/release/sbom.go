// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// rootsModule is the module that contains the image's root certificates.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// writeSBOM writes the SBOM of an image. It lists the image's binaries and the modules that the Go linker recorded in
// each of them.
func (r release) writeSBOM(output string, image v1.Image, files map[string][]byte) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	bom, err := r.sbom(digest, files)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return os.WriteFile(output, out.Bytes(), 0o644)
}

func (r release) sbom(digest v1.Hash, files map[string][]byte) (*cyclonedx.BOM, error) {
	subject := cyclonedx.Component{
		BOMRef: digest.String(), Type: cyclonedx.ComponentTypeContainer, Name: "drover", Version: r.version,
		PackageURL: "pkg:oci/drover@" + strings.Replace(digest.String(), ":", "%3A", 1),
	}
	libraries := map[string]cyclonedx.Component{}
	add := func(module debug.Module) string {
		library := libraryOf(module)
		libraries[library.BOMRef] = library
		return library.BOMRef
	}
	own, found := debug.ReadBuildInfo()
	if !found {
		return nil, fmt.Errorf("this program does not say which modules it is built from: build it with go build")
	}
	of := map[string][]string{subject.BOMRef: nil}
	for _, module := range own.Deps {
		if module.Path == rootsModule {
			of[subject.BOMRef] = append(of[subject.BOMRef], add(*module))
		}
	}
	var components []cyclonedx.Component
	for _, name := range sorted(files) {
		info, err := buildinfo.Read(bytes.NewReader(files[name]))
		if err != nil {
			return nil, fmt.Errorf("read the modules of %s: %w", name, err)
		}
		program := r.programOf(name, info.Main.Path, files[name])
		components = append(components, program)
		of[subject.BOMRef] = append(of[subject.BOMRef], program.BOMRef)
		of[program.BOMRef] = append(of[program.BOMRef], add(debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}))
		for _, module := range info.Deps {
			of[program.BOMRef] = append(of[program.BOMRef], add(*module))
		}
	}
	for _, ref := range sorted(libraries) {
		components = append(components, libraries[ref])
	}
	var dependencies []cyclonedx.Dependency
	for _, ref := range sorted(of) {
		on := of[ref]
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &on})
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.created.Format(time.RFC3339), Component: &subject}
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom, nil
}

func (r release) programOf(name, module string, content []byte) cyclonedx.Component {
	sum := sha256.Sum256(content)
	hashes := []cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	return cyclonedx.Component{
		BOMRef: "/" + name, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: r.version,
		PackageURL: "pkg:golang/" + module + "@" + r.version + "#" + name, Hashes: &hashes,
	}
}

func libraryOf(module debug.Module) cyclonedx.Component {
	if module.Replace != nil {
		module = *module.Replace
	}
	url := "pkg:golang/" + module.Path + "@" + module.Version
	return cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: url}
}
