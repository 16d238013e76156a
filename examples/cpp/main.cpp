// add2 from C++, with no Python in the process: through torch's dispatcher, and inside a compiled
// model (an AOTInductor package, which export.py makes).
//
//     example [model.pt2]
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>

// The operator by its name. The schema that kernel/add2.cpp has registered is compared with this
// signature, once.
at::Tensor add2(const at::Tensor& a, const at::Tensor& b) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("add2::add2", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(a, b);
}

bool report(const char* what, const at::Tensor& found, const at::Tensor& expected) {
  const bool same = at::equal(found, expected);
  std::printf("%-28s %s\n", what, same ? "the same as torch" : "DIFFERENT from torch");
  return same;
}

int main(int argc, char** argv) {
  bool good = true;
  const at::Tensor a = at::randn({3, 1000}), b = at::randn({3, 1000});
  good &= report("add2 on the CPU:", add2(a, b), a + b);
  if (at::hasCUDA()) {
    const at::Tensor x = a.cuda(), y = b.cuda();
    good &= report("add2 on the GPU:", add2(x, y), x + y);
  }
  if (argc > 1) {
    torch::inductor::AOTIModelPackageLoader model(argv[1]);
    good &= report("a compiled model with add2:", model.run({a, b}).at(0), at::relu(a * a + b));
  }
  return good ? 0 : 1;
}
