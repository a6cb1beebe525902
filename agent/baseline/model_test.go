// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

var seed = flag.Uint64("seed", 0, "of the random test of Baselines; 0 takes any")

// target is the kind and the name of an object in the world's namespace.
type target struct{ kind, name string }

func (g target) object(namespace string) client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: g.name}
	if g.kind == "Secret" {
		return &corev1.Secret{ObjectMeta: meta}
	}
	return &corev1.ConfigMap{ObjectMeta: meta}
}

func targets() (all []target) {
	for i := range 6 {
		all = append(all, target{"ConfigMap", fmt.Sprint("x", i)})
	}
	for i := range 3 {
		all = append(all, target{"Secret", fmt.Sprint("x", i)})
	}
	return all
}

// base is one of the Baselines.
type base struct {
	*member
	want   map[target]string // value by object; nil while the Baseline does not exist
	orphan bool
	result Result
}

// found is an object in the member.
type found struct {
	client.Object
	value string
}

func (f found) label() string { return f.GetLabels()[v1.LabelBaseline] }

// world is a member with Baselines that change at random while a stranger writes objects with the same names.
type world struct {
	*member
	t      *testing.T
	random *rand.Rand
	bases  []*base
	live   map[target]found
	// strangers contains the resource versions of the objects that are the stranger's.
	strangers map[types.UID]string
	steps     []string       // of this round
	done      map[string]int // number of steps by their first word
	lossy     bool           // whether a lost inventory would lose objects in this round
	value     int
}

func newWorld(t *testing.T, from uint64) *world {
	t.Helper()
	w := &world{t: t, random: rand.New(rand.NewPCG(from, 1)), strangers: map[types.UID]string{},
		done: map[string]int{}}
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	for _, name := range []string{"-a", "-b"} {
		m := &member{Env: env, namespace: namespace, name: namespace + name, id: set.ID(set.Baseline, namespace+name)}
		m.grant(t, []string{""}, "configmaps", "secrets")
		w.bases = append(w.bases, &base{member: m})
	}
	w.member = w.bases[0].member
	w.now = time.Now
	w.restart()
	return w
}

func (w *world) restart() {
	w.lead(w.t)
	for _, b := range w.bases {
		b.keeper, b.secrets = w.keeper, w.secrets
	}
}

func (w *world) step(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
	name, _, _ := strings.Cut(format, " ")
	w.done[name]++
}

// observe reads the objects of the member.
func (w *world) observe(ctx context.Context) error {
	var configMaps corev1.ConfigMapList
	var secrets corev1.SecretList
	err := errors.Join(w.Client.List(ctx, &configMaps, client.InNamespace(w.namespace)),
		w.Client.List(ctx, &secrets, client.InNamespace(w.namespace)))
	w.live = map[target]found{}
	for i := range configMaps.Items {
		o := &configMaps.Items[i]
		w.live[target{"ConfigMap", o.Name}] = found{o, o.Data["v"]}
	}
	for i := range secrets.Items {
		o := &secrets.Items[i]
		w.live[target{"Secret", o.Name}] = found{o, string(o.Data["v"])}
	}
	return err
}

// content returns the content of a Baseline.
func (b *base) content(t *testing.T) *set.BaselineContent {
	t.Helper()
	var documents []string
	for _, g := range targets() {
		if value, wanted := b.want[g]; wanted {
			if g.kind == "Secret" {
				value = base64.StdEncoding.EncodeToString([]byte(value))
			}
			documents = append(documents, fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata: {name: %s, namespace: NS}\n"+
				"data: {v: %s}", g.kind, g.name, value))
		}
	}
	c := b.member.content(t, documents...)
	c.Conflicts = v1.ConflictsTake
	if b.orphan {
		c.DeletionPolicy = v1.DeletionOrphan
	}
	return c
}

// write gives a Baseline other objects, or removes it.
func (w *world) write(b *base) {
	if b.want != nil && w.random.IntN(8) == 0 {
		w.step("remove %s", b.name)
		b.want = nil
		return
	}
	b.want, b.orphan = map[target]string{}, w.random.IntN(4) == 0
	w.value++
	all := targets()
	for _, i := range w.random.Perm(len(all))[:1+w.random.IntN(len(all)-2)] {
		b.want[all[i]] = fmt.Sprint("v", w.value)
	}
	w.step("write %s: %v, orphan: %t", b.name, b.want, b.orphan)
}

// disown makes the objects that a Baseline does not want the stranger's. Without an inventory, they are not known to be
// the Baseline's.
func (w *world) disown(b *base) {
	for g, o := range w.live {
		_, wanted := b.want[g]
		if _, known := w.strangers[o.GetUID()]; !known && !wanted && o.label() == b.name {
			w.strangers[o.GetUID()] = o.GetResourceVersion()
		}
	}
}

// mayLabel reports whether it is certain what the Baseline does with an object that gets its label.
func (w *world) mayLabel(b *base, g target) bool {
	_, wanted := b.want[g]
	_, recorded := w.keeper.of(b.id).store.entries[refOf("v1", g.kind, w.namespace, g.name)]
	return wanted || !recorded
}

// disturb is a step of the stranger.
func (w *world) disturb() {
	all := targets()
	g, b := all[w.random.IntN(len(all))], w.bases[w.random.IntN(len(w.bases))]
	o, there := w.live[g]
	ours := there && w.strangers[o.GetUID()] != ""
	switch n := w.random.IntN(8); {
	case !there && n < 2 && w.mayLabel(b, g):
		w.put(g, b.name)
	case !there && n < 5 && w.mayLabel(b, g):
		w.pretend(g, b)
	case !there:
		w.put(g, "")
	case n < 2:
		w.step("delete %v", g)
		w.must(w.Client.Delete(w.t.Context(), o.Object))
		delete(w.live, g)
		delete(w.strangers, o.GetUID())
	case n == 2 && ours && w.mayLabel(b, g):
		w.label(g, b.name)
	case n == 3 && !ours && w.wants(o.label(), g):
		w.label(g, "")
		w.lossy = true
	default:
		w.change(g)
	}
}

func (w *world) wants(name string, g target) bool {
	return slices.ContainsFunc(w.bases, func(b *base) bool {
		_, wanted := b.want[g]
		return wanted && b.name == name
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%v, after %s", err, strings.Join(w.steps, "; "))
	}
}

// wrote records that the stranger wrote an object. A new object is the stranger's.
func (w *world) wrote(g target, o client.Object, made bool) {
	if _, ours := w.strangers[o.GetUID()]; ours || made {
		w.strangers[o.GetUID()] = o.GetResourceVersion()
	}
	w.live[g] = found{o, ""}
}

func (w *world) put(g target, label string) {
	w.step("create %v with label %q", g, label)
	o := g.object(w.namespace)
	if label != "" {
		o.SetLabels(map[string]string{v1.LabelBaseline: label})
	}
	w.must(w.Client.Create(w.t.Context(), o, client.FieldOwner("stranger")))
	w.wrote(g, o, true)
}

// pretend creates an object as a user who pretends to be the field manager of a Baseline.
func (w *world) pretend(g target, b *base) {
	w.step("pretend %v of %s", g, b.name)
	labels := map[string]string{v1.LabelBaseline: b.name}
	owner := client.FieldOwner(baseline.User(b.name))
	if g.kind == "Secret" {
		w.must(w.Client.Apply(w.t.Context(), corev1ac.Secret(g.name, w.namespace).WithLabels(labels), owner))
	} else {
		w.must(w.Client.Apply(w.t.Context(), corev1ac.ConfigMap(g.name, w.namespace).WithLabels(labels), owner))
	}
	o := g.object(w.namespace)
	w.must(w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(o), o))
	w.wrote(g, o, true)
}

func (w *world) label(g target, label string) {
	w.step("label %v %q", g, label)
	text := "null"
	if label != "" {
		text = fmt.Sprintf("%q", label)
	}
	w.patch(g, `{"metadata":{"labels":{"`+v1.LabelBaseline+`":`+text+`}}}`)
}

func (w *world) change(g target) {
	w.value++
	w.step("change %v", g)
	w.patch(g, fmt.Sprintf(`{"data":{"v":%q}}`, base64.StdEncoding.EncodeToString(fmt.Append(nil, "s", w.value))))
}

func (w *world) patch(g target, text string) {
	o := g.object(w.namespace)
	patch := client.RawPatch(types.MergePatchType, []byte(text))
	w.must(w.Client.Patch(w.t.Context(), o, patch, client.FieldOwner("stranger")))
	w.wrote(g, o, false)
}

// interrupt ends the agent, possibly in the middle of its work, or loses an inventory.
func (w *world) interrupt() {
	b := w.bases[w.random.IntN(len(w.bases))]
	switch n := w.random.IntN(12); {
	case n < 2 && b.want != nil:
		w.step("kill during %s", b.name)
		ctx, kill := context.WithCancel(w.t.Context())
		left := atomic.Int64{}
		left.Store(w.random.Int64N(5))
		w.keeper.options.Write = func(ctx context.Context, _, _ string, write func(context.Context) error) error {
			if left.Add(-1) < 0 {
				kill()
			}
			return errors.Join(ctx.Err(), write(ctx))
		}
		w.keeper.Keep(ctx, b.id, b.content(w.t), nil)
		kill()
	case n == 2:
		w.step("restart")
	case n == 3 && !w.lossy && b.want != nil:
		w.step("lose the inventory of %s", b.name)
		_ = w.secrets.Delete(w.t.Context(), secretName(b.id)) // there may be none yet
		w.disown(b)
	default:
		return
	}
	w.restart()
}

// keep lets the agent work once.
func (w *world) keep(ctx context.Context) {
	for _, b := range w.bases {
		if b.want != nil {
			b.result = w.keeper.Keep(ctx, b.id, b.content(w.t), nil)
			continue
		}
		b.result = w.keeper.Remove(ctx, b.id)
	}
}

// untouched returns an error if an object of the stranger was changed or deleted.
func (w *world) untouched() error {
	there := map[types.UID]bool{}
	for g, o := range w.live {
		there[o.GetUID()] = true
		version, ours := w.strangers[o.GetUID()]
		if ours && !w.wants(o.label(), g) && version != o.GetResourceVersion() {
			return fmt.Errorf("%v of the stranger was changed: %+v", g, o.Object)
		}
	}
	for uid := range w.strangers {
		if !there[uid] {
			return fmt.Errorf("an object of the stranger with the UID %s was deleted", uid)
		}
	}
	return nil
}

// conflicts returns the objects that a Baseline wants and that do not belong to it.
func (w *world) conflicts(b *base) (all []string) {
	for g := range b.want {
		if o, there := w.live[g]; there && o.label() != b.name {
			all = append(all, refOf("v1", g.kind, w.namespace, g.name).String())
		}
	}
	slices.Sort(all)
	return all
}

// blocked reports whether the Baseline with the given name does not prune, because it has a conflict.
func (w *world) blocked(name string) bool {
	return slices.ContainsFunc(w.bases, func(b *base) bool { return b.name == name && len(w.conflicts(b)) > 0 })
}

// check compares the member with the model.
func (w *world) check() error {
	if err := w.untouched(); err != nil {
		return err
	}
	for _, b := range w.bases {
		var got []string
		for _, p := range b.result.Problems {
			got = append(got, p.Object)
		}
		if want := w.conflicts(b); !slices.Equal(got, want) {
			return fmt.Errorf("%s: got the problems %+v, want conflicts for %q", b.name, b.result.Problems, want)
		}
	}
	for _, g := range targets() {
		o, there := w.live[g]
		var values []string
		for _, b := range w.bases {
			if value, wanted := b.want[g]; wanted && (!there || o.label() == b.name) {
				values = append(values, value)
			}
		}
		switch {
		case !there && len(values) > 0:
			return fmt.Errorf("%v is missing, want it with the value %q", g, values[0])
		case there && len(values) > 0 && o.value != values[0]:
			return fmt.Errorf("%v has the value %q, want %q", g, o.value, values[0])
		case !there || len(values) > 0 || w.strangers[o.GetUID()] != "" || w.blocked(o.label()):
		default:
			return fmt.Errorf("%v of %s is left, want it deleted", g, o.label())
		}
	}
	return nil
}

// settle lets the agent work until the member is as the model wants it.
func (w *world) settle() {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func(ctx context.Context) error {
		w.keep(ctx)
		if err := w.observe(ctx); err != nil {
			return err
		}
		w.leave()
		if err := w.check(); err != nil {
			return fmt.Errorf("%w, after %s", err, strings.Join(w.steps, "; "))
		}
		return nil
	})
	for g, o := range w.live {
		if w.wants(o.label(), g) { // handed over
			delete(w.strangers, o.GetUID())
		}
	}
	w.steps, w.lossy = nil, false
}

// leave makes orphaned objects the stranger's.
func (w *world) leave() {
	for _, b := range w.bases {
		if b.want != nil || !b.orphan || len(b.result.Problems) > 0 {
			continue
		}
		for _, o := range w.live {
			if _, known := w.strangers[o.GetUID()]; !known && o.label() == b.name {
				w.strangers[o.GetUID()] = o.GetResourceVersion()
			}
		}
		b.orphan = false
	}
}

// revoke takes the right to Secrets away for some time.
func (w *world) revoke() {
	w.step("revoke the rights")
	w.allow("configmaps")
	testkit.Eventually(w.t, patience, func(ctx context.Context) error {
		for _, b := range w.bases {
			if err := w.member.keeper.options.Client.Objects().As(baseline.User(b.name)).
				MayList(ctx, "/api/v1/secrets"); err == nil {
				return fmt.Errorf("%s may list Secrets, want its rights revoked", b.name)
			}
		}
		return nil
	})
	w.keep(w.t.Context())
	w.must(w.observe(w.t.Context()))
	w.must(w.untouched())
	w.allow("configmaps", "secrets")
}

func (w *world) allow(resources ...string) {
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: resources,
		Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}}}
	for _, b := range w.bases {
		w.must(w.Client.Update(w.t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: b.name}, Rules: rules}))
		w.AwaitRights(w.t, baseline.User(b.name), w.namespace, rules...)
	}
}

// course runs random steps, and compares the member with the model after every few steps.
func course(t *testing.T, steps int) {
	from := *seed
	if from == 0 {
		from = uint64(time.Now().UnixNano())
	}
	t.Logf("the seed is %d", from)
	w := newWorld(t, from)
	started, round := time.Now(), 0
	// Each round begins with new budgets for repairs.
	w.now = func() time.Time { return started.Add(time.Duration(round) * 10 * time.Minute) }
	w.must(w.observe(t.Context()))
	for done := 0; done < steps; round++ {
		if w.random.IntN(3) == 0 {
			w.write(w.bases[w.random.IntN(len(w.bases))])
		}
		for range 2 + w.random.IntN(6) {
			w.disturb()
		}
		if w.random.IntN(50) == 0 {
			w.revoke()
		}
		w.interrupt()
		done += len(w.steps)
		w.settle()
	}
	for _, b := range w.bases {
		b.want = nil
	}
	w.settle()
	t.Logf("%v in %d rounds and %s; %d objects are the stranger's", w.done, round,
		time.Since(started).Round(time.Second), len(w.strangers))
}

func TestOnlyTheObjectsOfABaselineChange(t *testing.T) {
	t.Parallel()
	course(t, 500)
}

func TestLong_OnlyTheObjectsOfABaselineChange(t *testing.T) {
	t.Parallel()
	course(t, 10_000)
}
