// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// put writes a file.
func put(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func TestTheFolderOfAnExport(t *testing.T) {
	first := map[string]string{"a.yaml": "one", "clusters/b.yaml": "two", "principals.yaml": "who"}
	second := map[string]string{"a.yaml": "one", "c.yaml": "three", "principals.yaml": "who else"}
	tests := map[string]struct {
		between func(t *testing.T, dir, outside string)
		folder  folder
		want    map[string]string // nil means the files of second
		err     string
	}{
		"what is gone is removed, with its folder": {},
		"a file that no export wrote stays": {
			between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, "README"), "mine") },
			want:    map[string]string{"a.yaml": "one", "c.yaml": "three", "principals.yaml": "who else", "README": "mine"}},
		"a file that no export wrote is not written over": {
			between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, "c.yaml"), "mine") },
			want:    map[string]string{"a.yaml": "one", "clusters/b.yaml": "two", "principals.yaml": "who", "c.yaml": "mine"}, err: "c.yaml was not written by an export"},
		"… unless it is as it would be": {between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, "c.yaml"), "three") }},
		"… unless it is asked for": {
			between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, "c.yaml"), "mine") }, folder: folder{force: true}},
		"a file that was changed is not removed": {
			between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, "clusters/b.yaml"), "edited") },
			want:    map[string]string{"a.yaml": "one", "clusters/b.yaml": "edited", "principals.yaml": "who"}, err: "clusters/b.yaml was changed since the last export"},
		"a file that was changed is not written over": {
			between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, "principals.yaml"), "edited") },
			want:    map[string]string{"a.yaml": "one", "clusters/b.yaml": "two", "principals.yaml": "edited"}, err: "principals.yaml was changed since the last export"},
		"… unless it was given": {
			between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, "principals.yaml"), "edited") }, folder: folder{given: "principals.yaml"}},
		"a file that a person deleted is written again": {between: func(t *testing.T, dir, _ string) {
			if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
				t.Fatal(err)
			}
		}},
		"a link in place of a file is not followed": {
			between: func(t *testing.T, dir, outside string) { symlink(t, outside, filepath.Join(dir, "c.yaml")) },
			folder:  folder{force: true}, err: "c.yaml is not a file: links are not followed"},
		"a link in place of a folder is not followed": {
			between: func(t *testing.T, dir, outside string) {
				if err := os.RemoveAll(filepath.Join(dir, "clusters")); err != nil {
					t.Fatal(err)
				}
				symlink(t, filepath.Dir(outside), filepath.Join(dir, "clusters"))
			},
			folder: folder{force: true}, err: "clusters is not a folder: links are not followed"},
		"a link in place of the digests is not followed": {
			between: func(t *testing.T, dir, outside string) {
				if err := os.Remove(filepath.Join(dir, sumsFile)); err != nil {
					t.Fatal(err)
				}
				symlink(t, outside, filepath.Join(dir, sumsFile))
			},
			folder: folder{force: true}, err: "links are not followed"},
		"digests that lead out of the folder are refused": {
			between: func(t *testing.T, dir, outside string) {
				put(t, filepath.Join(dir, sumsFile), digest([]byte("outside"))+"  ../"+filepath.Base(outside)+"\n")
			},
			folder: folder{force: true}, err: "is not a line of an export"},
		"digests that are none are refused": {
			between: func(t *testing.T, dir, _ string) { put(t, filepath.Join(dir, sumsFile), "<<<<<<< HEAD\n") },
			err:     "is not a line of an export"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, outside := filepath.Join(top, "fleet"), filepath.Join(top, "outside")
			put(t, outside, "outside")
			write := func(f folder, content map[string]string) error {
				f.dir, f.fileMode, f.dirMode = dir, 0o644, 0o755
				all := map[string][]byte{}
				for name, text := range content {
					all[name] = []byte(text)
				}
				return f.write(all)
			}
			if err := write(folder{}, first); err != nil {
				t.Fatal(err)
			}
			if tt.between != nil {
				tt.between(t, dir, outside)
			}
			err := write(tt.folder, second)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("%v, want %q", err, tt.err)
			}
			if left, err := os.ReadFile(outside); err != nil || string(left) != "outside" {
				t.Errorf("the file outside is %q, %v", left, err)
			}
			want := tt.want
			if want == nil && tt.err == "" {
				want = second
			}
			if want != nil {
				expectTree(t, dir, want)
			}
		})
	}
}

// expectTree compares a folder with want, except for the digests.
func expectTree(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for name, text := range files(t, dir) {
		if _, content, _ := strings.Cut(text, "\n"); name != sumsFile {
			got[name] = content
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the folder has %v, want %v", got, want)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "clusters")); err == nil && len(entries) == 0 {
		t.Error("an empty folder is left")
	}
}

// After an export was interrupted between two files, the next export continues without --force, even if Rancher has
// changed in the meantime.
func TestAnInterruptedExportIsContinued(t *testing.T) {
	dir := t.TempDir()
	old := map[string][]byte{"a": []byte("a1"), "b": []byte("b1"), "gone": []byte("g")}
	between := map[string][]byte{"a": []byte("a2"), "b": []byte("b2"), "c": []byte("c2")}
	now := map[string][]byte{"a": []byte("a3"), "b": []byte("b3")}
	f := folder{dir: dir, fileMode: 0o644, dirMode: 0o755}
	if err := f.write(old); err != nil {
		t.Fatal(err)
	}
	stop := filepath.Join(dir, "c")
	if err := os.Mkdir(stop, 0o755); err != nil { // "c" cannot replace a folder that is not empty
		t.Fatal(err)
	}
	put(t, filepath.Join(stop, "x"), "x")
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	sums, err := readSums(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.replace(root, between, []string{"gone"}, sums); err == nil {
		t.Fatal("the export was not interrupted")
	}
	if err := os.RemoveAll(stop); err != nil {
		t.Fatal(err)
	}
	if err := f.write(now); err != nil {
		t.Fatal(err)
	}
	expectTree(t, dir, map[string]string{"a": "a3", "b": "b3"})
	if names := slices.Sorted(maps.Keys(files(t, dir))); slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, ".export") }) {
		t.Errorf("the folder has %v", names)
	}
}

func TestTheFolderItselfIsNoLink(t *testing.T) {
	top := t.TempDir()
	symlink(t, t.TempDir(), filepath.Join(top, "secrets"))
	err := folder{dir: filepath.Join(top, "secrets"), fileMode: 0o600, dirMode: 0o700}.write(map[string][]byte{"a": []byte("swordfish")})
	if err == nil || !strings.Contains(err.Error(), "links are not followed") {
		t.Fatal(err)
	}
}
