// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// sumsFile contains the digests of all files that an export has written, in the format of sha256sum. It identifies the
// files that belong to the export.
const sumsFile = "SHA256SUMS"

// sumsLimit is the maximum size of sumsFile, in bytes.
const sumsLimit = 64 << 20

// folder is the folder that an export writes to. An export does not modify files that no export wrote, or files that
// have changed since an export wrote them. It does not follow symbolic links.
type folder struct {
	dir               string
	given             string // a file that the export has read and may therefore overwrite
	force             bool
	fileMode, dirMode fs.FileMode
}

// write writes the given files to the folder and removes all other files that an earlier export wrote. It checks all
// files before it writes the first one.
func (f folder) write(files map[string][]byte) error {
	if info, err := os.Lstat(f.dir); err == nil && !info.IsDir() {
		return fmt.Errorf("nothing was written: %s is not a folder: links are not followed", f.dir)
	}
	if err := os.MkdirAll(f.dir, f.dirMode); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return fmt.Errorf("open the folder: %w", err)
	}
	defer func() { _ = root.Close() }()
	sums, err := readSums(root)
	if err != nil {
		return err
	}
	var problems []string
	var stale []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if problem := f.check(root, name, files[name], sums); problem != "" {
			problems = append(problems, problem)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		if _, stays := files[name]; stays {
			continue
		}
		if problem := f.check(root, name, nil, sums); problem != "" {
			problems = append(problems, problem)
		}
		stale = append(stale, name)
	}
	if len(problems) > 0 {
		const most = 10
		if more := len(problems) - most; more > 0 {
			problems = append(problems[:most], fmt.Sprintf("and %d more", more))
		}
		return fmt.Errorf("nothing was written to %s:\n%s", f.dir, strings.Join(problems, "\n"))
	}
	return f.replace(root, files, stale, sums)
}

// check returns the reason why a file cannot be written or, if content is nil, why it cannot be removed.
func (f folder) check(root *os.Root, name string, content []byte, sums map[string][]string) string {
	if !fs.ValidPath(name) || strings.Contains(name, `\`) {
		return fmt.Sprintf("%q is not a path in the folder", name)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := root.Lstat(dir); err == nil && !info.IsDir() {
			return dir + " is not a folder: links are not followed"
		}
	}
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return fmt.Sprintf("look at %s: %v", name, err)
	case !info.Mode().IsRegular():
		return name + " is not a file: links are not followed"
	case f.force || name == f.given:
		return ""
	}
	old, err := root.ReadFile(name)
	switch {
	case err != nil:
		return fmt.Sprintf("read %s: %v", name, err)
	case content != nil && bytes.Equal(old, content), slices.Contains(sums[name], digest(old)):
		return ""
	case len(sums[name]) > 0:
		return name + " was changed since the last export: move the change elsewhere, for example into an overlay, or use --force to overwrite it"
	}
	return name + " was not written by an export: move it, export into another folder, or use --force to overwrite it"
}

// replace writes files and removes stale files. All of these files must have passed check. replace first adds the new
// digests to the old ones, so that the next export recognizes files that an interrupted export wrote.
func (f folder) replace(root *os.Root, files map[string][]byte, stale []string, sums map[string][]string) error {
	var now bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&now, "%s  %s\n", digest(files[name]), name)
	}
	both := bytes.NewBuffer(slices.Clone(now.Bytes()))
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		for _, sum := range sums[name] {
			fmt.Fprintf(both, "%s  %s\n", sum, name)
		}
	}
	if err := f.put(root, sumsFile, both.Bytes()); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := f.put(root, name, files[name]); err != nil {
			return err
		}
	}
	for _, name := range stale {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if root.Remove(dir) != nil { // the folder is not empty
				break
			}
		}
	}
	return f.put(root, sumsFile, now.Bytes())
}

// put writes a file under a temporary name and then renames it, so that the file is never incomplete. It does not
// modify a file that already has the right content.
func (f folder) put(root *os.Root, name string, content []byte) error {
	if info, err := root.Lstat(name); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&^f.fileMode == 0 {
		if old, err := root.ReadFile(name); err == nil && bytes.Equal(old, content) {
			return nil
		}
	}
	if err := root.MkdirAll(path.Dir(name), f.dirMode); err != nil {
		return fmt.Errorf("make the folder of %s: %w", name, err)
	}
	part := path.Join(path.Dir(name), ".export.part")
	if err := root.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: %w", name, err)
	}
	file, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.fileMode)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// readSums reads the digests that an earlier export wrote. If that export was interrupted, a file can have two digests.
func readSums(root *os.Root) (map[string][]string, error) {
	sums := map[string][]string{}
	info, err := root.Lstat(sumsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return sums, nil
	} else if err != nil {
		return nil, fmt.Errorf("read %s: %w", sumsFile, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: it is not a file: links are not followed", sumsFile)
	}
	file, err := root.Open(sumsFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", sumsFile, err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(io.LimitReader(file, sumsLimit))
	for lines.Scan() {
		sum, name, found := strings.Cut(lines.Text(), "  ")
		if !found || len(sum) != hex.EncodedLen(sha256.Size) || !fs.ValidPath(name) || name == "." {
			return nil, fmt.Errorf("read %s: %q is not a line of an export", sumsFile, lines.Text())
		}
		sums[name] = append(sums[name], sum)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", sumsFile, err)
	}
	return sums, nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
