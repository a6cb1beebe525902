// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const checksumsFile = "checksums.txt"

// checksums writes the checksums of all files below dist.
func (r release) checksums() error { return writeChecksums(r.dist) }

// writeChecksums writes the SHA-256 digests of all files below a folder to a file that "sha256sum --check" accepts.
func writeChecksums(dir string) error {
	sums, err := sumsOf(dir, checksumsFile)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, sum := range sums {
		fmt.Fprintf(&out, "%s  %s\n", sum.sha256, sum.name)
	}
	return os.WriteFile(filepath.Join(dir, checksumsFile), []byte(out.String()), 0o644)
}

// checksum is the hash of a file. The file's name is relative to the folder.
type checksum struct{ name, sha256 string }

// sumsOf returns the checksums of all files below a folder, sorted by path. It skips the files named in except, if
// they are directly in the folder.
func sumsOf(dir string, except ...string) ([]checksum, error) {
	var sums []checksum
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || slices.Contains(except, name) {
			return err
		}
		sum, err := sumOf(filepath.Join(dir, name))
		sums = append(sums, checksum{name: name, sha256: sum})
		return err
	})
	return sums, err
}

func sumOf(path string) (sum string, err error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
