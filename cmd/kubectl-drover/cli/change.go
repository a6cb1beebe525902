// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// Values of --dry-run, as in kubectl.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

const outputName = "name"

// Change holds the flags of commands that change objects on the hub: --dry-run and --output. They work as in kubectl.
type Change struct {
	command *cobra.Command
	dryRun  string
	output  string
	yamls   int // YAML documents printed so far
}

// BindChange adds the flags of a command that changes objects.
func BindChange(c *cobra.Command) *Change {
	ch := &Change{command: c}
	c.Flags().StringVar(&ch.dryRun, "dry-run", dryRunNone, "none, client or server. With client, the hub is at most "+
		"read, and \"-o yaml\" prints the object. With server, the hub checks the change, but keeps "+
		"nothing")
	c.Flags().Lookup("dry-run").NoOptDefVal = dryRunClient
	c.Flags().StringVarP(&ch.output, "output", "o", "", "How to print the object: name, yaml or json (default: one line)")
	Complete(c, "dry-run", Offer(dryRunNone, dryRunClient, dryRunServer))
	Complete(c, "output", Offer(outputName, OutputYAML, OutputJSON))
	c.PreRunE = func(*cobra.Command, []string) error { return ch.check() }
	return ch
}

func (ch *Change) check() error {
	if !slices.Contains([]string{dryRunNone, dryRunClient, dryRunServer}, ch.dryRun) {
		return fmt.Errorf("unknown value %q of --dry-run: use none, client or server", ch.dryRun)
	}
	if !slices.Contains([]string{"", outputName, OutputYAML, OutputJSON}, ch.output) {
		return fmt.Errorf("unknown output format %q: use name, yaml or json", ch.output)
	}
	return nil
}

// Real reports whether the change is not a dry run.
func (ch *Change) Real() bool { return ch.dryRun == dryRunNone }

// Local reports whether the command must not send any changes to the hub.
func (ch *Change) Local() bool { return ch.dryRun == dryRunClient }

// Explain prints a message to standard error if the command prints the object, or its name, instead of a sentence about
// the change.
func (ch *Change) Explain(format string, args ...any) {
	if ch.output != "" {
		ch.command.PrintErrf(format, args...)
	}
}

// Make calls do to change an object, and then prints the object. In a client-side dry run, it does not call do. In a
// server-side dry run, it calls do with a client that does not persist changes. The done parameter describes the
// change, for example "created".
func (ch *Change) Make(h *Hub, object client.Object, done string, do func(client.Client) error) error {
	if !ch.Local() {
		c := client.WithFieldOwner(h, FieldManager)
		if ch.dryRun == dryRunServer {
			c = client.NewDryRunClient(c)
		}
		if err := do(c); err != nil {
			return err
		}
	}
	return ch.print(h.Scheme(), ch.command.OutOrStdout(), object, done)
}

// checkLimit is the time limit for the checks of a client-side dry run, which also works without the hub.
const checkLimit = 5 * time.Second

// Checked is the result of checking the objects that a command line refers to.
type Checked struct {
	// Mistakes describes objects that do not exist or cannot be used. Without a dry run, they are errors.
	Mistakes []string
	// Warnings describes objects that may be created later.
	Warnings []string
	// Unread lists the objects that the user may not read.
	Unread []string
}

// Check calls check, which reads the objects that a command line refers to. In a client-side dry run, Check only warns
// about mistakes, and lists the objects that were not checked.
func (ch *Change) Check(ctx context.Context, c *cobra.Command, check func(context.Context) (Checked, error)) error {
	if ch.Local() {
		limited, cancel := context.WithTimeout(ctx, checkLimit)
		defer cancel()
		ctx = limited
	}
	found, err := check(ctx)
	for _, warning := range found.Warnings {
		c.PrintErrf("Warning: %s.\n", Plain(warning))
	}
	if !ch.Local() {
		if err == nil && len(found.Mistakes) > 0 {
			err = fmt.Errorf("%s. Nothing was changed", strings.Join(found.Mistakes, ". "))
		}
		return err
	}
	for _, mistake := range found.Mistakes {
		c.PrintErrf("Warning: %s.\n", Plain(mistake))
	}
	for _, unread := range found.Unread {
		c.PrintErrf("Warning: you may not read %s: whether it exists was not checked.\n", Plain(unread))
	}
	if err != nil {
		c.PrintErrf("Warning: the hub was not read, so that nothing more was checked: %s.\n", Plain(Unreached(err).Error()))
	}
	return nil
}

func (ch *Change) print(kinds *runtime.Scheme, out io.Writer, object client.Object, done string) error {
	gvk, err := apiutil.GVKForObject(object, kinds)
	if err != nil {
		return err
	}
	name := strings.ToLower(gvk.Kind) + "." + gvk.Group + "/" + object.GetName()
	switch ch.output {
	case "":
		if ch.dryRun != dryRunNone {
			done += " (" + ch.dryRun + " dry run)"
			done = strings.ReplaceAll(done, "(client dry run)", "(dry run)")
		}
		_, err = fmt.Fprintf(out, "%s %s\n", Plain(name), done)
		return err
	case outputName:
		_, err = fmt.Fprintln(out, Plain(name))
		return err
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	manifest, err := Manifest(object)
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(manifest, "", "  ")
	if err == nil && ch.output == OutputYAML {
		if raw, err = yaml.Marshal(manifest); ch.yamls > 0 {
			raw = append([]byte("---\n"), raw...)
		}
		ch.yamls++
	} else {
		raw = append(raw, '\n')
	}
	if err == nil {
		_, err = out.Write(raw)
	}
	if err != nil {
		return fmt.Errorf("print %s: %w", name, err)
	}
	return nil
}

// Manifest returns an object in the form in which it would be stored in a Git repository, without the status and the
// metadata that the hub sets.
func Manifest(object client.Object) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", object.GetName(), err)
	}
	delete(content, "status")
	metadata := map[string]any{}
	for _, key := range []string{"name", "namespace", "labels", "annotations"} {
		if value, found, _ := unstructured.NestedFieldNoCopy(content, "metadata", key); found {
			metadata[key] = value
		}
	}
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	content["metadata"] = metadata
	return content, nil
}

// Pausing completes a command that sets spec.paused in an object. The first argument is the name of the object. The
// function read returns the object and the address of its field.
func Pausing(
	o *Options, c *cobra.Command, paused bool, read func(context.Context, *Hub, string) (client.Object, *bool, error),
) *cobra.Command {
	change := BindChange(c)
	c.Args = Arguments(1, "NAME")
	c.RunE = func(c *cobra.Command, args []string) error {
		return o.OnHub(c, CommandLimit, func(ctx context.Context, h *Hub) error {
			object, field, err := read(ctx, h, args[0])
			if err != nil {
				return err
			}
			done := "resumed"
			if paused {
				done = "paused"
			}
			if *field == paused {
				done = "unchanged"
			}
			// was is a copy of the object before the change, so that the patch contains only the changed field.
			was, _ := object.DeepCopyObject().(client.Object)
			*field = paused
			return change.Make(h, object, done, func(w client.Client) error {
				return w.Patch(ctx, object, client.MergeFrom(was))
			})
		})
	}
	return c
}
