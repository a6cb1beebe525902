// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"io/fs"
)

// walk calls each with all files of a tree.
func walk(tree fs.FS, each func(name string, content []byte)) error {
	return fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(tree, name)
		each(name, content)
		return err
	})
}
