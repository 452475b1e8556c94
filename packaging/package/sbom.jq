# A CycloneDX 1.5 bill of materials from `cargo metadata`: what is linked into the programs of the packages.
. as $all
| ([.packages[] | {key: .id, value: .}] | from_entries) as $packages
| ([.resolve.nodes[] | {key: .id, value: .}] | from_entries) as $nodes
| ($roots | split(" ")) as $names
# Without what only tests and builds use.
| def uses($id): [$nodes[$id].deps[] | select(any(.dep_kinds[]; .kind == null)) | .pkg];
  def reach($found; $next):
      if $next == [] then $found
      else ($found + $next) as $now | reach($now; ([$next[] | uses(.)[]] | unique) - $now)
      end;
  [.packages[] | select(.name as $name | $names | index($name)) | .id] as $ours
| reach([]; $ours) as $ids
| def ref($id): $packages[$id] | "pkg:cargo/\(.name)@\(.version)";
  {
      bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
      metadata: {
          timestamp: $date,
          component: {type: "application", name: "sluice", version: $version, "bom-ref": "sluice"}
      },
      components: [
          $ids | unique[] | . as $id | $packages[$id]
          | {type: "library", name, version, "bom-ref": ref($id), purl: ref($id)}
          + (if .license then {licenses: [{expression: (.license | gsub("/"; " OR "))}]} else {} end)
          + (($sums[0][$id | tostring] // $sums[0]["\(.name) \(.version)"]) as $sum
              | if $sum then {hashes: [{alg: "SHA-256", content: $sum}]} else {} end)
      ],
      dependencies: (
          [{ref: "sluice", dependsOn: [$ours[] | ref(.)]}]
          + [$ids | unique[] | . as $id | {ref: ref($id), dependsOn: [uses($id)[] | ref(.)] | unique}]
      )
  }
